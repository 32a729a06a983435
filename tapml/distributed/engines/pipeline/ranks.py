"""Puts the children of a Sequential on stages, which a schedule runs in micro-batches."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

from tapml.distributed.job_file import kind_of
from tapml.distributed.optimizers import optimizers_in
from tapml_targets.errors import WrongJobError

if TYPE_CHECKING:
    from tapml.distributed.job_file import Job

_SCHEDULES: Final[dict[str, Any]] = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "looped_bfs": pipelining.ScheduleLoopedBFS,
}
APART: Final = True
_SEVERAL_STAGES: Final = ("interleaved", "looped_bfs")


class Stages(nn.Module):
    """The children of the stages of one rank, by their names in the whole model.

    `stages` are the indices of its stages, and `children_of` the names on every stage.
    """

    def __init__(self, model: nn.Module, world: int, rank: int, count: int) -> None:
        super().__init__()
        names = [name for name, _ in model.named_children()]
        ends = [len(names) * stage // count for stage in range(count + 1)]
        self.children_of = [names[first:last] for first, last in pairwise(ends)]
        self.stages = list(range(rank, count, world))
        for stage in self.stages:
            for name in self.children_of[stage]:
                self.add_module(name, model.get_submodule(name))

    def part(self, stage: int) -> nn.Sequential:
        """The children of one of its stages, in order."""
        return nn.Sequential(*(self.get_submodule(name) for name in self.children_of[stage]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the whole model gives, on every rank: stage after stage, not in micro-batches."""
        for stage in range(len(self.children_of)):
            owner = stage % dist.get_world_size()
            shape: list[Any] = [None]
            if stage in self.stages:
                x = self.part(stage)(x).contiguous()
                shape = [(tuple(x.shape), x.dtype)]
            dist.broadcast_object_list(shape, src=owner)
            if stage not in self.stages:
                x = torch.empty(shape[0][0], dtype=shape[0][1])
            dist.broadcast(x, src=owner)
        return x


def distribute(model: nn.Module, job: Job, rank: int, world: int, **options: str) -> nn.Module:
    """The stages of this rank; of schedules for several stages, every rank has two."""
    del job
    several = options["schedule"] in _SEVERAL_STAGES
    return Stages(model, world, rank, world * (2 if several else 1))


def step(
    job: Job, model: Any, batch: Any, optimizer: Any, *, schedule: str, microbatches: str
) -> None:
    """One run of the schedule, and the optimizer's step."""
    with job.calling("inputs()"):
        inputs = job.module.inputs(batch)
    if not isinstance(inputs, torch.Tensor):
        raise WrongJobError(
            f"{job.path.name}: inputs() must return one tensor, which the first stage takes, got "
            f"{kind_of(inputs)}"
        )
    samples = inputs.shape[0]

    def loss(output: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        with job.calling("loss()"):
            found = job.module.loss(output, _picked(batch, rows, samples))
        if not isinstance(found, torch.Tensor) or found.numel() != 1:
            shape = f" of shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else ""
            raise WrongJobError(
                f"{job.path.name}: loss() must return a tensor of one number, got {kind_of(found)}"
                + shape
            )
        return found

    count = len(model.children_of)
    made = [
        pipelining.PipelineStage(model.part(stage), stage, count, torch.device("cpu"))
        for stage in model.stages
    ]
    several = schedule in _SEVERAL_STAGES
    planned = _SCHEDULES[schedule](made if several else made[0], int(microbatches), loss_fn=loss)
    optimizers = optimizers_in(optimizer)
    for each in optimizers:
        each.zero_grad()
    arguments = (inputs,) if 0 in model.stages else ()
    last = count - 1 in model.stages
    planned.step(*arguments, target=torch.arange(samples) if last else None)
    for each in optimizers:
        each.step()


def _picked(value: Any, rows: torch.Tensor, samples: int) -> Any:
    """The samples of a micro-batch; tensors that do not count samples stay whole."""
    if isinstance(value, torch.Tensor):
        return value[rows] if value.ndim and value.shape[0] == samples else value
    if isinstance(value, dict):
        return {name: _picked(each, rows, samples) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_picked(each, rows, samples) for each in value)
    return value
