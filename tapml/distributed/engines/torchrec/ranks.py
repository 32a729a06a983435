"""Shards the embedding tables of a model with TorchRec, and tells which shards a rank has."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch.ao import quantization as ao_quantization
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, EmbeddingBagSharder
from torchrec.distributed.global_settings import set_propogate_device
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.quant_embeddingbag import QuantEmbeddingBagCollectionSharder
from torchrec.distributed.types import ShardingEnv, ShardingType
from torchrec.inference.modules import shard_quant_model
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.quant.embedding_modules import (
    EmbeddingBagCollection as QuantEmbeddingBagCollection,
)
from torchrec.quant.embedding_modules import (
    quant_prep_enable_quant_state_dict_split_scale_bias_for_types,
)

from tapml.distributed.engine import Held

if TYPE_CHECKING:
    from torch import nn

    from tapml.distributed.job_file import Job

_SHARDINGS: Final = {
    "TW": ShardingType.TABLE_WISE,
    "RW": ShardingType.ROW_WISE,
    "CW": ShardingType.COLUMN_WISE,
    "DP": ShardingType.DATA_PARALLEL,
    "TWRW": ShardingType.TABLE_ROW_WISE,
    "TWCW": ShardingType.TABLE_COLUMN_WISE,
    "GRID": ShardingType.GRID_SHARD,
}
_SHARDERS: Final = {"EBCS": EmbeddingBagCollectionSharder, "EBS": EmbeddingBagSharder}
_FORMATS: Final = {"int8": torch.qint8, "float16": torch.float16, "float32": torch.float32}
_OF_HOSTS: Final = ("TWRW", "GRID")
_RATE: Final = "_tapml_rate"


def distribute(
    model: nn.Module,
    job: Job,
    rank: int,
    world: int,
    *,
    sharding: str,
    sharder: str,
    kernel: str,
    device: str,
    **formats: str,
) -> nn.Module:
    """Shard all tables in one way; dense layers get DistributedDataParallel.

    The fused kernel takes the step of the job's optimizer in backward.

    Raises
    ------
    ValueError
        If the fused kernel has no such optimizer, or the tables are asked for in another format.
    """
    del rank
    for name, value in formats.items():
        if value != "float32":
            raise ValueError(f"tables that are trained keep the job's format: no {name} {value}")
    # Else tables are made for a GPU where there is none.
    set_propogate_device(True)
    # Several hosts of two ranks, for what is sharded within hosts.
    hosts = sharding in _OF_HOSTS and world > 2 and world % 2 == 0
    local = 2 if hosts else world
    os.environ["LOCAL_WORLD_SIZE"] = str(local)
    kind = _SHARDINGS[sharding].value
    base: Any = _SHARDERS[sharder]

    class Sharder(base):  # type: ignore[misc]
        """Offers what was asked for, whatever the library would offer on this device."""

        def sharding_types(self, compute_device_type: str) -> list[str]:
            return [kind]

        def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
            return [kernel]

    before = {name: value.detach().clone() for name, value in model.state_dict().items()}
    rate = _rate(job, model) if kernel == "fused" else 0.0
    fused = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": rate}
    chosen = Sharder(fused_params=fused if kernel == "fused" else None)
    topology = Topology(world_size=world, compute_device=device, local_world_size=local)
    tables = {
        name
        for module in model.modules()
        if type(module) is chosen.module_type
        for name in chosen.shardable_parameters(module)
    }
    constraints = {name: ParameterConstraints(sharding_types=[kind]) for name in tables}
    # Every rank plans by itself: the planner gives all the same plan.
    plan = EmbeddingShardingPlanner(topology=topology, constraints=constraints).plan(
        model, [chosen]
    )
    wrapped: nn.Module = DistributedModelParallel(
        model,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        device=torch.device(device),
        plan=plan,
        sharders=[chosen],
    )
    names = frozenset(
        f"{path}.{name}"
        for path, of_module in plan.plan.items()
        for name in _parameter_names(model, path, of_module)
    )
    vars(wrapped)[_RATE] = (rate, names if sharding != "DP" else frozenset())
    _restore(wrapped, before)
    return wrapped


def _restore(model: nn.Module, values: dict[str, torch.Tensor]) -> None:
    """Give sharded tables their values, because the library makes new ones."""
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if not hasattr(value, "local_shards"):
                value.copy_(values[name])
                continue
            for each in value.local_shards():
                cut = zip(each.metadata.shard_offsets, each.metadata.shard_sizes, strict=True)
                block = values[name][tuple(slice(start, start + size) for start, size in cut)]
                each.tensor.copy_(block)


def serve(
    model: nn.Module,
    world: int,
    *,
    weights: str,
    activations: str,
    sharding: str = "",
    kernel: str = "fused",
    **others: str,
) -> nn.Module:
    """Quantize the tables of a trained model and shard them over devices that one process serves.

    Parameters
    ----------
    model
        Its collections of tables are replaced.
    world
        The number of devices; 0 for tables that are quantized and not sharded.
    weights, activations
        Formats of the tables, and of what they give.
    """
    del others
    set_propogate_device(True)
    if weights == "int8":
        # Shards by row and column need scale and bias apart from the values.
        quant_prep_enable_quant_state_dict_split_scale_bias_for_types(
            model, [EmbeddingBagCollection]
        )
    quantization: Any = ao_quantization
    config = quantization.QConfig(
        activation=quantization.PlaceholderObserver.with_args(dtype=_FORMATS[activations]),
        weight=quantization.PlaceholderObserver.with_args(dtype=_FORMATS[weights]),
    )
    quantized: nn.Module = quantization.quantize_dynamic(
        model,
        qconfig_spec={EmbeddingBagCollection: config},
        mapping={EmbeddingBagCollection: QuantEmbeddingBagCollection},
        inplace=True,
    )
    if not world:
        return quantized
    kind = _SHARDINGS[sharding].value

    class Sharder(QuantEmbeddingBagCollectionSharder):  # type: ignore[misc]
        """Offers what was asked for, whatever the library would offer on this device."""

        def sharding_types(self, compute_device_type: str) -> list[str]:
            return [kind]

        def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
            return ["quant" if kernel == "fused" else kernel]

    sharder = Sharder()
    before = {
        path: module.state_dict()
        for path, module in quantized.named_modules()
        if type(module) is QuantEmbeddingBagCollection
    }
    tables = {name.split(".")[1] for state in before.values() for name in state}
    plan = EmbeddingShardingPlanner(
        topology=Topology(world_size=world, compute_device="cpu", local_world_size=world),
        constraints={name: ParameterConstraints(sharding_types=[kind]) for name in tables},
    ).plan(quantized, [sharder])
    served, _ = shard_quant_model(
        quantized,
        world,
        compute_device="cpu",
        sharding_device="cpu",
        sharders=[sharder],
        sharding_plan=plan,
    )
    for path, state in before.items():
        sharded = served.get_submodule(path)
        if weights == "int8":
            lost = sharded.load_state_dict(state, strict=False).missing_keys
            if lost:
                raise ValueError(f"the sharded tables of {path} do not get {lost[0]}")
        else:
            _copy_rows(state, sharded.state_dict())
    found: nn.Module = served
    return found


def _copy_rows(source: dict[str, torch.Tensor], target: dict[str, torch.Tensor]) -> None:
    """Copy tables whose rows are padded to other lengths, which load_state_dict does not take."""
    for name, value in target.items():
        width = min(value.shape[1], source[name].shape[1])
        value[:, :width].copy_(source[name][:, :width])


def held(model: nn.Module) -> tuple[frozenset[str], list[Held]]:
    """The tables that are sharded, and this rank's shards."""
    rate, names = vars(model)[_RATE]
    found = []
    for name, value in model.state_dict().items():
        if name in names:
            blocks = tuple(
                (tuple(each.metadata.shard_offsets), each.tensor.detach())
                for each in value.local_shards()
            )
            found.append(Held(name, tuple(value.size()), blocks, rate))
    return names, found


def _parameter_names(model: nn.Module, path: str, of_module: Any) -> list[str]:
    """Names of a module's parameters: a collection's plan is by table."""
    tables = hasattr(model.get_submodule(path), "embedding_bags")
    return [f"embedding_bags.{name}.weight" if tables else name for name in of_module]


def _rate(job: Job, model: nn.Module) -> float:
    """The learning rate of the job's optimizer, which must be plain SGD."""
    optimizer = job.optimizer(model)
    groups = optimizer.param_groups if type(optimizer) is torch.optim.SGD else []
    group = groups[0] if len(groups) == 1 else None
    if group is None or group["momentum"] or group["weight_decay"] or group["maximize"]:
        raise ValueError(
            "the fused kernel is compared with plain SGD only: let optimizer(model) return "
            "torch.optim.SGD without momentum and weight decay, or set kernel=dense, sharding=DP"
        )
    return float(group["lr"])
