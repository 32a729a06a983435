"""The first child of a check: it builds the model and the batches that all runs get.

Weights, inputs and the samples of each rank are sent to the runs as they are, never as seeds: a
rank that consumes random numbers in another order must not look like a bug.
"""

from __future__ import annotations

import ast
import hashlib
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from tapml.distributed.child_process import join, named_tensors, seed_all
from tapml.distributed.job_file import MODULE, Job, load_job
from tapml.distributed.packing import pack, pack_tensor
from tapml.distributed.parts import IndivisibleError, count_samples, find_rows, split
from tapml.distributed.samples_apart import batch_norms, dropouts
from tapml.isolate.member import Member
from tapml_targets.errors import InputError

# A job whose imports take longer has them preloaded: every rank of every run would wait for them.
_SLOW_SECONDS: Final = 0.5


def prepare(member: Member, payload: dict[str, Any]) -> dict[str, Any]:
    """A job of a group of one; what it returns is read by :mod:`tapml.distributed.plan`."""
    modules, threads, started = set(sys.modules), _threads(), time.monotonic()
    job = load_job(Path(payload["job"]))
    seconds, threads_now = time.monotonic() - started, _threads()
    join(member, payload["deadline"])
    steps = _constant(job, "STEPS", payload["steps"], 1)
    worlds = _worlds(job, payload["worlds"])
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
    slow = seconds > _SLOW_SECONDS and threads_now == threads
    return {
        "preload": _importable(modules, job.path.parent) if slow else [],
        "sources": _sources(job, modules),
        "steps": steps,
        "worlds": worlds,
        "has": {name: job.has(name) for name in ("distribute", "predict", "part", "optimizer")},
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


def ready(_: None) -> bool:
    """Whether a process with other preloaded modules can start; a job."""
    return True


def _threads() -> int:
    """Threads of this process, also those of libraries: none survives a fork."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.is_dir() else threading.active_count()


def _importable(before: set[str], folder: Path) -> list[str]:
    """Modules that the job's imports loaded, except those beside the job."""
    found = []
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        if name in before or name == MODULE or spec is None or spec.name != name:
            continue
        if (
            spec.origin
            and Path(spec.origin).is_file()
            and not Path(spec.origin).is_relative_to(folder)
        ):
            found.append(name)
    return found


def _sources(job: Job, before: set[str]) -> dict[str, str]:
    """Hashes of the job's file and of what it imports from its folder, by name.

    Also what a function would import later, in whichever process.
    """
    found = {MODULE: job.path} | imported_beside(job.path)
    for name, module in list(sys.modules.items()):
        origin = Path(getattr(module, "__file__", None) or "/")
        if name not in before and origin.is_relative_to(job.path.parent) and origin.is_file():
            found[name] = origin
    return {
        name: hashlib.sha256(origin.read_bytes()).hexdigest()
        for name, origin in sorted(found.items())
    }


def imported_beside(path: Path) -> dict[str, Path]:
    """The files beside a Python file that its import statements name, wherever they stand."""
    found: dict[str, Path] = {}
    waiting = [path]
    while waiting:
        try:
            tree = ast.parse(waiting.pop().read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue  # What cannot be read cannot be imported, and says so then.
        for name in _imported(tree):
            for origin in _files_of(path.parent, name):
                if origin not in found.values() and origin.is_file():
                    found[str(origin.relative_to(path.parent))] = origin
                    waiting.append(origin)
    return found


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def _files_of(folder: Path, name: str) -> Iterator[Path]:
    """Where a module and the packages around it would lie."""
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        place = folder.joinpath(*parts[:count])
        yield from (place.with_suffix(".py"), place / "__init__.py")


def _constant(job: Job, name: str, given: int | None, default: int) -> int:
    value = job.constant(name, default) if given is None else given
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(
            f"{job.path.name}: {name} must be a whole number of at least 1, got {value!r}"
        )
    return value


def _worlds(job: Job, given: list[int] | None) -> list[int]:
    worlds = job.constant("WORLDS", (1, 2, 4)) if given is None else given
    valid = isinstance(worlds, list | tuple) and worlds
    if not valid or not all(isinstance(each, int) and each >= 1 for each in worlds):
        raise InputError(
            f"{job.path.name}: WORLDS must be a list of whole numbers of at least 1, got {worlds!r}"
        )
    return list(dict.fromkeys(worlds))


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
