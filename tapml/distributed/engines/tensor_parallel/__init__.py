"""Tensor parallelism: the layers' weights sharded, every rank sees all samples."""
