"""The migration session: Algorithm 1 of the paper, journaled step by step."""
