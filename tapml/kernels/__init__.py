"""Kernels a developer wrote by hand: read, checked, replayed, watched."""
