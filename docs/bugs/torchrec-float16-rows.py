"""TorchRec 1.8.0 does not load its own float16 tables where a row is no multiple of 16 bytes.

`QuantEmbeddingBagCollection` pads rows to 16 bytes, its sharded counterpart does not pad them on
the CPU. Both show the padded rows in `state_dict`, so that a table of 12 float16 numbers a row (24
bytes) is 32 bytes wide in one and 24 in the other, and `load_state_dict` raises.

Needs: pip install --no-deps torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0
"""

import sys

import torch
from torch.ao import quantization
from torchrec.distributed.global_settings import set_propogate_device
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.quant_embeddingbag import QuantEmbeddingBagCollectionSharder
from torchrec.inference.modules import shard_quant_model
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.quant.embedding_modules import EmbeddingBagCollection as Quantized


def load(dimension: int) -> str:
    """What loading a table of so many columns into its sharded counterpart gives."""
    table = EmbeddingBagConfig(
        name="t", embedding_dim=dimension, num_embeddings=4, feature_names=["f"]
    )
    made = torch.nn.Sequential(EmbeddingBagCollection(tables=[table], device=torch.device("cpu")))
    config = quantization.QConfig(
        activation=quantization.PlaceholderObserver.with_args(dtype=torch.float32),
        weight=quantization.PlaceholderObserver.with_args(dtype=torch.float16),
    )
    model = quantization.quantize_dynamic(
        made, {EmbeddingBagCollection: config}, mapping={EmbeddingBagCollection: Quantized}
    )
    state = model[0].state_dict()
    sharder = QuantEmbeddingBagCollectionSharder()
    topology = Topology(world_size=2, compute_device="cpu", local_world_size=2)
    by_table = {"t": ParameterConstraints(sharding_types=["table_wise"])}
    planner = EmbeddingShardingPlanner(topology=topology, constraints=by_table)
    plan = planner.plan(model, [sharder])
    sharded, _ = shard_quant_model(model, 2, "cpu", "cpu", [sharder], sharding_plan=plan)
    try:
        sharded[0].load_state_dict(state)
    except RuntimeError as error:
        return f"RuntimeError: {str(error).splitlines()[-1].strip()}"
    return "loaded"


# Without it, TorchRec makes tables for a GPU even where the machine has no GPU.
set_propogate_device(True)
print(" 8 columns, 16 bytes:", load(8))
found = load(12)
print("12 columns, 24 bytes:", found)
sys.exit(found != "loaded")
