"""The first child of a check: it builds the model and the batches that all runs get.

Weights, inputs and the samples of each rank are sent to the runs as they are, never as seeds: a
rank that consumes random numbers in another order must not look like a bug.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from tapml.distributed.child_process import join, named_tensors, seed_all
from tapml.distributed.job_file import OF_ENGINES, OPTIONAL, Job, load_job
from tapml.distributed.job_sources import (
    SLOW_SECONDS,
    constant,
    count_threads,
    importable,
    sources,
)
from tapml.distributed.job_sources import worlds as worlds_of
from tapml.distributed.packing import pack, pack_tensor
from tapml.distributed.parts import IndivisibleError, count_samples, find_rows, split
from tapml.distributed.samples_apart import batch_norms, dropouts
from tapml.isolate.member import Member
from tapml_targets.errors import InputError


def prepare(member: Member, payload: dict[str, Any]) -> dict[str, Any]:
    """A job of a group of one; what it returns is read by :mod:`tapml.distributed.plan`."""
    modules, threads, started = set(sys.modules), count_threads(), time.monotonic()
    job = load_job(Path(payload["job"]))
    seconds, threads_now = time.monotonic() - started, count_threads()
    join(member, payload["deadline"])
    steps = constant(job, "STEPS", payload["steps"], 1)
    worlds = worlds_of(job, payload["worlds"])
    seed_all()
    model = job.model()
    batches = []
    for _ in range(steps):
        with job.calling("batch()"):
            batches.append(job.module.batch())
    for batch in batches:
        count_samples(batch)
    if _is_lazy(model):
        _materialize(job, model, batches[0])
    weights = dict(named_tensors(model))
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InputError(f"{job.path.name}: model() gives {name} values that are not finite")
    slow = seconds > SLOW_SECONDS and threads_now == threads
    return {
        "preload": importable(modules, job.path.parent) if slow else [],
        "sources": sources(job, modules),
        "steps": steps,
        "worlds": worlds,
        "has": {name: job.has(name) for name in (*OPTIONAL, *OF_ENGINES)},
        "modules": {path: type(each).__name__ for path, each in model.named_modules()},
        "weights": {name: pack_tensor(tensor, name) for name, tensor in weights.items()},
        "batches": [pack(batch, "the batch") for batch in batches],
        "parts": {str(world): _parts(job, batches, world) for world in worlds},
        "samples": count_samples(batches[0]),
        "parameters": [
            [name, each.numel(), each.requires_grad] for name, each in model.named_parameters()
        ],
        "batch_norm": batch_norms(model),
        "dropout": dropouts(model),
    }


def _parts(job: Job, batches: list[Any], world: int) -> dict[str, Any]:
    """For each step and rank its batch and its samples; or why there are none."""
    steps = []
    for batch in batches:
        try:
            parts = split(job, batch, world)
        except IndivisibleError as error:
            return {"reason": str(error), "steps": []}
        steps.append([[pack(part, "the part"), find_rows(batch, part)] for part in parts])
    return {"reason": "", "steps": steps}


def _is_lazy(model: nn.Module) -> bool:
    return any(is_lazy(each) for _, each in named_tensors(model))


class _NoOptimizer:
    """Lets a step build lazy layers without training them."""

    param_groups: tuple[()] = ()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing."""

    def step(self, closure: Any = None) -> None:
        """Do nothing."""


def _materialize(job: Job, model: nn.Module, batch: Any) -> None:
    with job.calling("step() on a model with lazy layers"):
        job.step(model, batch, _NoOptimizer())
    model.zero_grad()
    if _is_lazy(model):
        raise InputError(
            f"{job.path.name}: a lazy layer is not used by step(), so its shape is not known; "
            "remove it, or build it with its shape"
        )
