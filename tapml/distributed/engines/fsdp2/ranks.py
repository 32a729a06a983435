"""Shards a model with `fully_shard`: blocks first, then the root."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.checkpoint_activation import (
    checkpoint as checkpoint_activations,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from tapml.distributed.accumulating import accumulate
from tapml.distributed.restoring import restore

if TYPE_CHECKING:
    from tapml.distributed.job_file import Job

_STEPPED: Final = "_tapml_stepped"


def distribute(
    model: nn.Module,
    job: Job,
    rank: int,
    world: int,
    *,
    reshard: str = "yes",
    precision: str = "same",
    activations: str = "kept",
    saved_by: str = "none",
    accumulation: str = "1",
    resumed_by: str = "none",
) -> nn.Module:
    """Shard every block by itself, as the library's tutorial does, and the rest with the root.

    With `saved_by`, the weights come out of a checkpoint that so many ranks have written.
    """
    del job, accumulation, resumed_by
    checkpoint = None if saved_by == "none" else _Checkpoint(model, rank, int(saved_by))
    options: dict[str, Any] = {"reshard_after_forward": reshard == "yes"}
    if precision != "same":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=getattr(torch, precision))
    mesh = init_device_mesh("cpu", (world,))
    found = blocks(model)
    if activations == "recomputed":
        for block in found:
            checkpoint_activations(block)
    for block in found:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    if checkpoint is not None:
        checkpoint.load(model)
    return model


def step(
    job: Job,
    model: Any,
    batch: Any,
    optimizer: Any,
    *,
    accumulation: str = "1",
    resumed_by: str = "none",
    **options: str,
) -> None:
    """The job's step, in micro-batches of which only the last is reduced.

    With `resumed_by`, every step but the first begins with weights and optimizer state out of a
    checkpoint that so many ranks have written.
    """
    del options
    if resumed_by != "none" and vars(model).get(_STEPPED):
        restore(job, model, optimizer, int(resumed_by), _shard)
    vars(model)[_STEPPED] = True

    @contextmanager
    def quiet() -> Iterator[None]:
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)

    accumulate(job, model, batch, optimizer, int(accumulation), quiet)


def _shard(model: nn.Module, mesh: DeviceMesh) -> None:
    for block in blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


class _Checkpoint:
    """What the first `writers` ranks write of a model, sharded among themselves."""

    def __init__(self, model: nn.Module, rank: int, writers: int) -> None:
        paths: list[Any] = [tempfile.mkdtemp(prefix="tapml-checkpoint-") if rank == 0 else None]
        dist.broadcast_object_list(paths, src=0)
        self._path, self._rank = paths[0], rank
        group = dist.new_group(list(range(writers)))
        if rank < writers:
            mesh = DeviceMesh.from_group(group, "cpu")
            copy = deepcopy(model)
            fully_shard(copy, mesh=mesh)
            save(copy.state_dict(), checkpoint_id=self._path, process_group=group)
        dist.barrier()

    def load(self, model: nn.Module) -> None:
        """Give the model, whose weights are cleared first, those of the checkpoint."""
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(float("nan"))
        state = model.state_dict()
        load(state, checkpoint_id=self._path)
        model.load_state_dict(state)
        dist.barrier()
        if self._rank == 0:
            shutil.rmtree(self._path, ignore_errors=True)


def blocks(model: nn.Module) -> list[nn.Module]:
    """The root's children, items of lists for lists; none that shares a parameter with another."""
    children: list[nn.Module] = []
    for child in model.children():
        has_items = isinstance(child, nn.ModuleList | nn.ModuleDict)
        children += child.children() if has_items else [child]
    # Sharding needs a forward to gather for; what has none, as a ParameterList, stays the root's.
    forward = nn.Module.forward
    blocks = [each for each in dict.fromkeys(children) if type(each).forward is not forward]
    owners = Counter(parameter for block in blocks for parameter in set(block.parameters()))
    own = {parameter for _, parameter in model.named_parameters(recurse=False)}
    return [
        block
        for block in blocks
        if any(True for _ in block.parameters())
        and all(owners[each] == 1 and each not in own for each in block.parameters())
    ]
