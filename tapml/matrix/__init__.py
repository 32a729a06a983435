"""Comparison of the same kernels on several implementations of a platform."""
