"""Rooting: comparison of a plan with PyTorch, by operator and by output."""
