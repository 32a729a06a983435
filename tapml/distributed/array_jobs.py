"""Jobs of frameworks that take arrays of numpy: their batches, samples and records. No torch here.

A tree is an array, a number or text, or a dictionary, list or tuple of trees.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tapml.distributed.job_file import OF_ENGINES, OPTIONAL, Job, kind_of, load_job
from tapml.distributed.job_sources import constant, sources, worlds
from tapml.distributed.trees import map_tree, pack_tree, unpack_tree
from tapml_targets.errors import InputError, WrongJobError

Array: TypeAlias = NDArray[Any]
SEED: Final = 1


def is_array(value: Any) -> bool:
    """Whether a leaf is an array of any framework that numpy can read."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def map_arrays(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure with every array changed."""
    return map_tree(value, is_array, change)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """All arrays with their paths, such as ``layers.0.weight``."""
    if is_array(value):
        yield path or "(value)", value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}".removeprefix("."))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}.{index}".removeprefix("."))


def pack(value: Any, place: str) -> Any:
    """Plain data that :func:`unpack` restores. Raises InputError at another kind of leaf."""
    return pack_tree(value, place, _pack_leaf, "arrays")


def _pack_leaf(value: Any, _place: str) -> dict[str, Any] | None:
    if not is_array(value):
        return None
    array = np.array(value)
    return {"tensor": array, "dtype": array.dtype.name}


def unpack(packed: Any) -> Any:
    """The value that :func:`pack` packed."""
    return unpack_tree(packed, lambda leaf: leaf["tensor"])


def seed_all() -> None:
    """The same random numbers of Python and numpy in every process."""
    random.seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002  (what jobs draw from)


def count_samples(batch: Any) -> int:
    """Samples of a batch: the first dimension of its first array that has one."""
    found = next((each.shape[0] for _, each in leaves(batch) if each.shape), 0)
    if not found:
        raise InputError(
            f"batch() returned no array with samples, but {kind_of(batch)}; return an array, or a "
            "dictionary, list or tuple of arrays whose first dimension counts samples"
        )
    return int(found)


def samples_of(batch: Any, rows: list[int]) -> Any:
    """The part of a batch with these samples; arrays that do not count samples stay whole."""
    count = count_samples(batch)
    return map_arrays(
        batch, lambda each: each[rows] if each.shape and each.shape[0] == count else each
    )


def rows_of(samples: int, world: int) -> list[list[int]]:
    """Equal slices of consecutive samples."""
    each = samples // world
    return [list(range(rank * each, (rank + 1) * each)) for rank in range(world)]


def prepare(
    payload: Mapping[str, Any],
    required: Mapping[str, str],
    optional: Mapping[str, str],
    weights_of: Callable[[Job], list[tuple[str, Any, bool]]],
) -> dict[str, Any]:
    """What :mod:`tapml.distributed.plan` reads.

    `weights_of` gives (name, array, whether it learns). Raises InputError if the job is wrong.
    """
    before = set(sys.modules)
    job = load_job(Path(payload["job"]), required, optional)
    steps = constant(job, "STEPS", payload["steps"], 1)
    chosen = worlds(job, payload["worlds"])
    seed_all()
    weights = weights_of(job)
    if not weights:
        first = next(iter(required))
        raise InputError(f"{job.path.name}: {first}() gives no array: there is nothing to train")
    batches = []
    for _ in range(steps):
        with job.calling("batch()"):
            batches.append(job.module.batch())
    samples = count_samples(batches[0])
    for name, array, _ in weights:
        if array.dtype.kind == "f" and not bool(np.isfinite(array).all()):
            raise InputError(f"{job.path.name}: the starting values of {name} are not finite")
    packed = [pack(batch, "the batch") for batch in batches]
    return {
        "preload": [],
        "sources": sources(job, before),
        "steps": steps,
        "worlds": chosen,
        "has": {name: job.has(name) for name in (*OPTIONAL, *OF_ENGINES)},
        "modules": {},
        "weights": {name: pack(array, name) for name, array, _ in weights},
        "batches": packed,
        "parts": {str(world): _parts(batches, world) for world in chosen},
        "samples": samples,
        "parameters": [[name, int(np.size(array)), learns] for name, array, learns in weights],
        "batch_norm": [],
        "dropout": [],
    }


def _parts(batches: list[Any], world: int) -> dict[str, Any]:
    """For each step and rank its batch and its samples; or why there are none."""
    steps = []
    for batch in batches:
        samples = count_samples(batch)
        if samples % world:
            return {"reason": f"{samples} samples do not divide among {world} devices", "steps": []}
        steps.append(
            [[pack(samples_of(batch, rows), "the part"), rows] for rows in rows_of(samples, world)]
        )
    return {"reason": "", "steps": steps}


def predictions_of(job: Job, found: Any) -> list[Any]:
    """The arrays that `predict` gave. Raises InputError if there are none."""
    arrays = [value for _, value in leaves(found)]
    if not arrays:
        raise WrongJobError(
            f"{job.path.name}: predict() must return an array, or a dictionary, list or tuple of "
            f"arrays, got {kind_of(found)}"
        )
    return arrays


def record(phase: str, step: int, name: str, value: Any, order: int) -> dict[str, Any]:
    """A record of a whole tensor; see :class:`tapml.distributed.run_records.Record`."""
    array = None if value is None else plain(value)
    return {
        "phase": phase,
        "step": step,
        "name": name,
        "order": order,
        "value": array,
        "digest": "" if array is None else digest(array),
        "placement": "whole",
    }


def plain(value: Any) -> Array:
    """An array that numpy can compute with: short formats become float32, which holds them."""
    array = np.array(value)
    return array if array.dtype.kind in "fiub" and array.dtype.isbuiltin else array.astype("f4")


def digest(value: Array) -> str:
    """Hash of an array's type, shape and bits."""
    header = f"{value.dtype.str} {value.shape} ".encode()
    return hashlib.blake2b(header + value.tobytes(), digest_size=16).hexdigest()


def largest(value: Array) -> float:
    """The largest magnitude."""
    return float(np.max(np.abs(value), initial=0.0)) if value.dtype.kind in "fiu" else 0.0


def perturbed(value: Array, generator: np.random.Generator, roundoff: float) -> Array:
    """An array moved by up to `roundoff` relative, up or down."""
    if value.dtype.kind != "f":
        return value
    scale = max(float(np.finfo(value.dtype).eps), roundoff)
    moved = value.astype(np.float64) * (1 + scale * generator.uniform(-1, 1, value.shape))
    return moved.astype(value.dtype)
