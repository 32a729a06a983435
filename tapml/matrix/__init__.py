"""The same kernels on several implementations of a platform, compared with one another."""
