"""Searches output files for traces of a model.

The final check of ``--synthetic``: no file may contain a piece of the original inputs, a path of
the model's source or a name of one of its modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml.repro.folder import Repro
from tapml_targets.dtype import dtype as lookup
from tapml_targets.float_formats import Float64s, as_float64

Array = NDArray[Any]
_Words = NDArray[np.uint64]

# Two words of eight bytes: four float32 values. Random numbers do not agree on as many bits.
_FACTORS: Final = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
_SHORTEST_NAME: Final = 6


def find_traces(folder: Path, repro: Repro) -> list[str]:
    """Traces of the original test in the files of a folder, one line each."""
    names = {name for name in _names(repro) if len(name) >= _SHORTEST_NAME}
    pieces = _pieces(repro.case.read_inputs(), [p.dtype for p in repro.operator.read])
    found = []
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        data = path.read_bytes()
        found += [f"{path.name} has {name!r}" for name in names if name.encode() in data]
        if path.suffix == ".npy":
            # After the header, which ends on a multiple of 64.
            own = _hashes(np.frombuffer(data[: len(data) // 8 * 8], np.uint64))
            count = int(np.isin(own, pieces).sum())
            if count:
                found.append(f"{path.name} has {count} pieces of 16 bytes of the original inputs")
    return found


def _names(repro: Repro) -> Iterator[str]:
    for origin in repro.origins:
        yield origin.module_path
        yield origin.source
        yield origin.source.rpartition(":")[0]
    site, _, _ = repro.case.id.rpartition("@")
    # A test that was made and not carved has its operator's name.
    if site != repro.operator.name:
        yield site


def _pieces(arrays: Sequence[Array], dtypes: Sequence[str]) -> _Words:
    """Hashes of all informative pieces of the floating-point inputs."""
    found = [np.zeros(0, np.uint64)]
    for array, dtype in zip(arrays, dtypes, strict=True):
        if not lookup(dtype).is_float:
            continue
        flat = np.ascontiguousarray(array).reshape(-1)
        per_word = 8 // flat.dtype.itemsize
        usable = flat[: flat.size // per_word * per_word]
        words = np.frombuffer(usable.tobytes(), np.uint64)
        telling = np.all(_telling(as_float64(usable, dtype)).reshape(-1, per_word), axis=1)
        found.append(_hashes(words)[telling[:-1] & telling[1:]])
    return np.unique(np.concatenate(found))


def _telling(values: Float64s) -> NDArray[np.bool_]:
    """Elements that are not zero, one, NaN, Inf or as large as a mask's."""
    with np.errstate(all="ignore"):
        size = np.abs(values)
        telling: NDArray[np.bool_] = np.isfinite(size) & (size != 0) & (size != 1) & (size < 1e30)
    return telling


def _hashes(words: _Words) -> _Words:
    """One hash per two adjacent words."""
    with np.errstate(over="ignore"):
        return np.asarray(words[:-1] * _FACTORS[0] + words[1:] * _FACTORS[1])
