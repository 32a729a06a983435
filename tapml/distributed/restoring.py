"""A checkpoint between two steps: some ranks write weights and optimizer state, all ranks read."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh

from tapml.distributed.optimizers import optimizers_in
from tapml.distributed.packing import tensors_in

if TYPE_CHECKING:
    from torch import nn

    from tapml.distributed.job_file import Job


def restore(
    job: Job,
    model: nn.Module,
    optimizer: Any,
    writers: int,
    shard: Callable[[nn.Module, DeviceMesh], None],
) -> None:
    """Give a model and its optimizer their state out of a checkpoint that `writers` ranks wrote.

    All ranks write; the first `writers` of them read that into a model and an optimizer of their
    own, which `shard` shards over them, and write those; all ranks read, after clearing what they
    have. All ranks call this.
    """
    random = torch.get_rng_state()
    with ExitStack() as stack:
        places: list[Any] = [None]
        if dist.get_rank() == 0:
            folder = tempfile.TemporaryDirectory(
                prefix="tapml-checkpoint-", ignore_cleanup_errors=True
            )
            places = [stack.enter_context(folder)]
        dist.broadcast_object_list(places, src=0)
        _restore_through(Path(places[0]), job, model, optimizer, writers, shard)
    torch.set_rng_state(random)


def _restore_through(
    folder: Path,
    job: Job,
    model: nn.Module,
    optimizer: Any,
    writers: int,
    shard: Callable[[nn.Module, DeviceMesh], None],
) -> None:
    of_all, of_writers = folder / "all", folder / "writers"
    # An optimizer without state, as plain SGD, would take a step to make one.
    optimizers = optimizers_in(optimizer)
    has_state = any(each.state for each in optimizers)
    save(_state(model, optimizers, has_state), checkpoint_id=of_all)
    group: Any = dist.new_group(list(range(writers)))
    if dist.get_rank() < writers:
        fresh = job.model().to(next(model.parameters()).dtype)
        shard(fresh, DeviceMesh.from_group(group, "cpu"))
        made = optimizers_in(job.optimizer(fresh))
        _load(fresh, made, of_all, group, has_state)
        save(_state(fresh, made, has_state), checkpoint_id=of_writers, process_group=group)
    dist.barrier()
    with torch.no_grad():
        states = [list(each.state.values()) for each in optimizers]
        for tensor in tensors_in([list(model.parameters()), states]):
            if tensor.is_floating_point():
                tensor.fill_(float("nan"))
    _load(model, optimizers, of_writers, None, has_state)
    dist.barrier()


def _state(model: nn.Module, optimizers: list[Any], has_state: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"model": get_model_state_dict(model)}
    if has_state:
        found["optimizer"] = get_optimizer_state_dict(model, optimizers)
    return found


def _load(
    model: nn.Module, optimizers: list[Any], place: Path, group: Any, has_state: bool
) -> None:
    state = _state(model, optimizers, has_state)
    load(state, checkpoint_id=place, process_group=group)
    set_model_state_dict(model, state["model"])
    if has_state:
        set_optimizer_state_dict(model, optimizers, state["optimizer"])
