"""The ranks of one run on several machines: the workers of a Dask scheduler."""
