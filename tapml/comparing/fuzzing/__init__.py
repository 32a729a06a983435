"""Searches for models on which backends part: mutants of a user's model, and stacks of layers."""
