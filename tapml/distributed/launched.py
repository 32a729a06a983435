"""Records the ranks of the user's own launcher: torchrun, mpirun, or one process alone.

Each rank writes what its first steps compute. :func:`tapml.distributed.compare` reads the recording
of one process and that of many, and judges them as a check does.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from safetensors.numpy import save
from torch import nn
from torch.distributed.tensor import DTensor

from tapml.distributed.packing import to_array
from tapml.distributed.placing import local_part, place_of
from tapml.distributed.recorded_runs import FACTS, FORMAT, START, rank_folder, starting_values
from tapml.distributed.recording import Recorder, digest
from tapml.distributed.samples_apart import batch_norms, dropouts
from tapml.durable.files import write_bytes, write_json, writing
from tapml_targets.errors import InputError

# What wrappers put around the user's module.
_WRAPPED: Final = ("module", "_orig_mod")


class Recording:
    """A recording that goes on; :func:`record` makes it."""

    def __init__(
        self, folder: Path, model: nn.Module, optimizer: Any, steps: int, rank: int, world: int
    ) -> None:
        self._place = rank_folder(folder, rank)
        self._model, self._steps, self._step = model, steps, 0
        # ZeroRedundancyOptimizer keeps the state in the optimizer that it wraps.
        self._holder = getattr(optimizer, "optim", optimizer)
        inner = _unwrapped(model)
        self._recorder = Recorder(inner, sends=True)
        self._slices: dict[str, torch.Tensor] = {}
        self._handles: list[Any] = []
        if world > 1:
            self._watch_slices(inner)
        else:
            self._recorder.watch_backward(inner)
        with writing(self._place):
            # Of an earlier recording; facts come last, so that a half one is not read.
            shutil.rmtree(self._place, ignore_errors=True)
            self._place.mkdir(parents=True)
        self._recorder.start(model)
        self._write()
        facts = {
            "format": FORMAT,
            "rank": rank,
            "world": world,
            "torch": torch.__version__,
            "modules": {path: type(each).__name__ for path, each in inner.named_modules()},
            "parameters": [
                [name, each.numel(), each.requires_grad] for name, each in inner.named_parameters()
            ],
            "dtypes": sorted({str(each.dtype) for each in inner.parameters()}),
            "batch_norm": batch_norms(inner),
            "dropout": dropouts(inner),
        }
        write_json(self._place / FACTS, facts)
        self._handles += [
            optimizer.register_step_pre_hook(lambda *_: self._recorder.take_gradients(model)),
            optimizer.register_step_post_hook(lambda *_: self._end_step()),
        ]
        self._recorder.begin_step(model)

    @property
    def done(self) -> bool:
        """Whether all steps are written."""
        return self._step >= self._steps

    def _watch_slices(self, model: nn.Module) -> None:
        """Keep each backward's own gradients: what a rank has before anything is reduced."""

        def keep_of(name: str) -> Callable[[torch.Tensor], None]:
            def keep(gradient: torch.Tensor) -> None:
                own = gradient.detach().clone()
                before = self._slices.get(name)
                self._slices[name] = own if before is None else before + own

            return keep

        for name, parameter in model.named_parameters():
            if parameter.requires_grad and not isinstance(parameter, DTensor):
                weight: Any = parameter
                self._handles.append(weight.register_hook(keep_of(name)))

    def _end_step(self) -> None:
        if self.done:
            return
        self._step += 1
        samples = self._recorder.samples
        self._recorder.end_step(self._model, self._holder, self._step, list(range(samples)))
        self._write()
        self._slices.clear()
        if self._step < self._steps:
            self._recorder.begin_step(self._model)
            return
        while self._handles:
            self._handles.pop().remove()

    def _write(self) -> None:
        """Write the records of a step and forget them; tensors once by their hash."""
        recorder = self._recorder
        tensors: dict[str, np.ndarray[Any, Any]] = {}
        records = []
        for record in recorder.records:
            value = record.pop("value")
            if value is not None:
                tensors[record["digest"]] = np.ascontiguousarray(value)
            records.append(record)
        slices = {}
        for name, tensor in self._slices.items():
            value = to_array(tensor)
            slices[name] = digest(value)
            tensors[slices[name]] = value
        head = {
            "records": records,
            "slices": slices,
            "not_compared": recorder.not_compared,
            "dtypes": sorted(recorder.formats),
        }
        name = f"step-{self._step}.safetensors" if self._step else START
        write_bytes(self._place / name, save(tensors, {"tapml": json.dumps(head)}))
        recorder.records.clear()


def record(
    folder: str | os.PathLike[str],
    model: nn.Module,
    optimizer: Any,
    *,
    steps: int = 1,
    start: str | os.PathLike[str] | None = None,
) -> Recording:
    """Record what the next training steps of this rank compute.

    Call it in every rank, after the model is wrapped and the optimizer is made. A step ends with
    ``optimizer.step()``. Nothing else in the script changes.

    Parameters
    ----------
    folder
        Gets a folder for each rank; that of an earlier recording is replaced.
    model
        The model as it is trained: plain, or in DistributedDataParallel, ``fully_shard``, DTensor,
        ``torch.compile``.
    optimizer
        A torch optimizer.
    steps
        How many steps to record.
    start
        A recording, whose starting weights and buffers this model gets first: two scripts that
        draw their own weights can so be compared.

    Returns
    -------
    Recording
        Whose `done` says whether all steps are written. Each is written as it ends.

    Raises
    ------
    InputError
        If the optimizer has no hooks, the steps are no positive number, or `start` is no
        recording of such a model.
    SetupError
        If the folder cannot be written.

    Examples
    --------
    Two lines in a script for torchrun::

        import tapml.distributed
        tapml.distributed.record("many", model, optimizer)
    """
    if not isinstance(folder, str | os.PathLike) or not str(folder):
        raise InputError(f"folder must be a path, got {folder!r}")
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if not hasattr(optimizer, "register_step_post_hook"):
        raise InputError(
            f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}: steps are "
            "seen through its hooks"
        )
    if not isinstance(steps, int) or steps < 1:
        raise InputError(f"steps must be a whole number of at least 1, got {steps!r}")
    ready = dist.is_available() and dist.is_initialized()
    rank = dist.get_rank() if ready else int(os.environ.get("RANK", "0"))
    world = dist.get_world_size() if ready else int(os.environ.get("WORLD_SIZE", "1"))
    if start is not None:
        _load(model, starting_values(Path(start)), Path(start))
    return Recording(Path(folder), model, optimizer, steps, rank, world)


def _load(model: nn.Module, values: dict[str, np.ndarray[Any, Any]], source: Path) -> None:
    """Give a model, also one that is sharded, the values of a recording."""
    reader = Recorder(_unwrapped(model), sends=False)
    with torch.no_grad():
        for name, tensor in reader.tensors(model):
            place = place_of(tensor)
            if name not in values or place is None:
                why = "has no" if place is not None else "cannot give this rank its shard of"
                raise InputError(f"{source} {why} {name}: record the same model there")
            whole, local = values[name], local_part(tensor)
            if place["placement"] == "shard":
                cut = zip(place["offset"], local.shape, strict=True)
                whole = whole[tuple(slice(first, first + size) for first, size in cut)]
            if whole.shape != tuple(local.shape):
                raise InputError(
                    f"{source} has {name} in the shape {whole.shape}, this model in "
                    f"{tuple(local.shape)}: record the same model there"
                )
            local.copy_(torch.from_numpy(np.array(whole)))


def _unwrapped(model: nn.Module) -> nn.Module:
    """The user's own module: wrappers of torch hold it alone, as `module` or `_orig_mod`."""
    found = model
    while type(found).__module__.startswith("torch.") and len(found._modules) == 1:
        (name, inner) = next(iter(found._modules.items()))
        if name not in _WRAPPED or inner is None:
            break
        found = inner
    return found
