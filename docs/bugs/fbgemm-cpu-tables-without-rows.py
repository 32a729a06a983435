"""FBGEMM 1.8.0 takes a CPU table without rows for one on a GPU, and raises in the lookup.

`split_embedding_codegen_lookup_invokers/lookup_sgd.py` (and those of the other optimizers) choose
the device by `use_cpu = common_args.host_weights.numel() > 0`. All tables of a group share these
weights. A rank of a ROW_WISE collection whose tables have no row there (5 rows on 4 ranks give 2,
2, 1, 0) so calls the operator with the weights of a GPU. One table with a row there hides it.

Needs: pip install --no-deps fbgemm-gpu-cpu==1.8.0
"""

import sys

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)


def look_up(*rows: int) -> str:
    """What a lookup with empty bags in tables of so many rows gives on the CPU."""
    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(each, 8, EmbeddingLocation.HOST, ComputeDevice.CPU) for each in rows],
        optimizer=EmbOptimType.EXACT_SGD,
        device=torch.device("cpu"),
    )
    none, offsets = torch.empty(0, dtype=torch.long), torch.zeros(2 * len(rows) + 1).long()
    try:
        return f"an output of shape {tuple(tables(none, offsets).shape)}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


print("a table of 1 row:          ", look_up(1))
print("tables of 1 row and of none:", look_up(1, 0))
found = look_up(0)
print("a table without rows:      ", found)
sys.exit("output" not in found)
