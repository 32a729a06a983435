"""Shards linear layers and embeddings with DTensor; the rest is the same on all ranks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

    from tapml.distributed.job_file import Job


class _SequenceParallel(SequenceParallel):
    """Takes whole tensors, and shards them by the dimension before the normalized ones."""

    @staticmethod
    def _prepare_input_fn(
        sequence_sharding: Any, mod: Any, inputs: Any, device_mesh: DeviceMesh
    ) -> DTensor:
        whole = DTensor.from_local(inputs[0], device_mesh, [Replicate()], run_check=False)
        before = whole.ndim - len(mod.normalized_shape) - 1
        return whole.redistribute(placements=[Shard(max(before, 0))])


def distribute(
    model: nn.Module, job: Job, rank: int, world: int, *, sequence: str = "whole"
) -> nn.Module:
    """Shard linear layers by their outputs and inputs in turn, embeddings by their rows.

    With `sequence` as ``sharded``, norms work on a part of the sequence, and layers that are cut by
    inputs scatter what they sum; both are gathered afterwards.
    """
    del job, rank
    mesh = init_device_mesh("cpu", (world,))
    uses = Counter(
        id(parameter)
        for module in model.modules()
        for parameter in module.parameters(recurse=False)
    )
    plan: dict[str, ParallelStyle] = {}
    gathered: list[nn.Module] = []
    linear = 0
    for name, module in model.named_modules():
        # A tied parameter would be cut in one of its modules only.
        alone = all(uses[id(each)] == 1 for each in module.parameters(recurse=False))
        if not name or not alone:
            continue
        if type(module) is nn.Linear:
            by_outputs = ColwiseParallel(output_layouts=Replicate())
            by_inputs = RowwiseParallel(input_layouts=Replicate())
            if sequence == "sharded":
                by_inputs = RowwiseParallel(
                    input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False
                )
            plan[name] = by_inputs if linear % 2 else by_outputs
            if linear % 2 and sequence == "sharded":
                gathered.append(module)
            linear += 1
        elif type(module) is nn.Embedding and module.padding_idx is None:
            plan[name] = RowwiseParallel(input_layouts=Replicate())
        elif sequence == "sharded" and type(module) in (nn.LayerNorm, nn.RMSNorm):
            plan[name] = _SequenceParallel()
            gathered.append(module)
    parallelize_module(model, mesh, plan)
    for module in gathered:
        module.register_forward_hook(_gather)
    return model


def _gather(module: nn.Module, inputs: Any, output: DTensor) -> torch.Tensor:
    del module, inputs
    return output.redistribute(placements=[Replicate()]).to_local()
