"""Reads the tensors of a repro folder and what its outputs should be; bounded, no pickle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml.carving.replay_repro import INDEPENDENT
from tapml.compare.expectation import Expectation, ExpectedOutput
from tapml.compare.independent_format import unpack_check
from tapml.compare.index_source import locate_source
from tapml.compare.operator_class import checked_class
from tapml.graph.plan import Operator
from tapml_targets.dtype import dtype as lookup
from tapml_targets.errors import InputError
from tapml_targets.library import Parameter

_NPY_HEADER_BYTES: Final = 4096
_CHECK_BYTES: Final = 1 << 16

Array = NDArray[Any]


def read_bounded(path: Path, limit: int) -> bytes:
    """A file of at most `limit` bytes; raises InputError where it has more."""
    size = path.stat().st_size
    if size > limit:
        raise InputError(f"{path} has {size} bytes; at most {limit} are expected")
    return path.read_bytes()


def read_tensors(
    folder: Path, names: Sequence[str], parameters: Sequence[Parameter], dtype: str | None = None
) -> tuple[Array, ...]:
    """One array per parameter, checked against its shape and dtype."""
    arrays = []
    for name, parameter in zip(names, parameters, strict=True):
        expected = np.dtype(dtype or lookup(parameter.dtype).numpy_name)
        arrays.append(read_array(folder, name, parameter, expected))
    return tuple(arrays)


def read_array(folder: Path, name: str, parameter: Parameter, expected: np.dtype[Any]) -> Array:
    """The array in a file of `folder`, checked against its parameter's shape and its dtype."""
    path = folder / name
    if path.name != name:
        raise InputError(f"{name!r} is no name of a file in {folder}")
    shape = tuple(int(extent) for extent in parameter.shape if isinstance(extent, int))
    nbytes = math.prod(shape) * expected.itemsize
    if path.stat().st_size > nbytes + _NPY_HEADER_BYTES:
        raise InputError(f"{path} is larger than a {expected}{list(shape)} array")
    array: Array = np.load(path, allow_pickle=False)
    if array.dtype != expected or array.shape != shape:
        raise InputError(
            f"{path}: expected {expected}{list(shape)}, got {array.dtype}{list(array.shape)}"
        )
    return array


def read_expectation(
    folder: Path, description: Mapping[str, Any], operator: Operator, inputs: Sequence[Array]
) -> Expectation:
    """What the outputs should be, as the folder has it."""
    names = description["files"]
    outputs = []
    for index, (parameter, kind) in enumerate(
        zip(operator.written, operator.output_kinds, strict=True)
    ):
        is_float = lookup(parameter.dtype).is_float
        carrier = "float64" if is_float else lookup(parameter.dtype).numpy_name
        values = read_array(
            folder / "expected", names["expected"][index], parameter, np.dtype(carrier)
        )
        moved = read_array(
            folder / "sensitivity", names["sensitivity"][index], parameter, np.dtype("float32")
        )
        outputs.append(
            ExpectedOutput(
                parameter.name,
                parameter.dtype,
                kind,
                values,
                moved,
                locate_source(
                    description["index_sources"][index], operator.read, inputs, values.shape
                ),
                float(description["reference_ratios"][index]),
                *checked_class(description["classes"][index]),
            )
        )
    independent = None
    if (folder / INDEPENDENT).exists():
        size = sum(2 * output.values.nbytes for output in outputs) + _CHECK_BYTES
        independent = unpack_check(read_bounded(folder / INDEPENDENT, size), outputs)
    terms, repeats = int(description["terms"]), int(description["repeats"])
    return Expectation(tuple(outputs), terms, repeats, independent)
