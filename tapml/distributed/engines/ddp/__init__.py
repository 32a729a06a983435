"""DistributedDataParallel: whole replicas, gradients averaged."""
