"""TorchRec: embedding tables sharded over the ranks, dense layers replicated."""
