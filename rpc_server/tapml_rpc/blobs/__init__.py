"""Weights and Libraries by hash: sent once, kept by the supervisor, mapped by workers."""
