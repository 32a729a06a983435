"""Weights and Libraries by hash: sent once, kept by the supervisor, given to workers as memory."""
