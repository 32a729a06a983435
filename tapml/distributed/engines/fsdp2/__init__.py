"""FSDP2 (`fully_shard`): parameters sharded by rows over the ranks."""
