"""ZeRO: whole replicas, the optimizer's state sharded."""
