"""HSDP: parameters sharded over pairs of ranks, the pairs replicated."""
