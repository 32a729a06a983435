"""Runs an entry step by step with every value kept: for rooting and for bodies.

The executor reuses memory and runs partly on a device; this does neither, so that each value can
be looked at and replaced on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tapml.graph.plan import CallStep, Entry, ViewStep
from tapml_targets.dtype import dtype
from tapml_targets.errors import InputError
from tapml_targets.expression import bind_shape, evaluate

Array = npt.NDArray[Any]
# Outputs start out as this byte, so that an element nobody wrote shows.
_POISON = 0x5A


class Functions(Protocol):
    """Operators by name, each called with its tensors in parameter order."""

    def __getitem__(self, operator: str) -> Callable[..., None]:
        """The function of an operator."""


def run_entry(
    entry: Entry,
    functions: Functions,
    tensors: Mapping[str, Array],
    replace: Callable[[str, Array], Array] | None = None,
    symbols: Mapping[str, int] | None = None,
) -> dict[str, Array]:
    """Run an entry.

    Parameters
    ----------
    entry
        Of a plan, or of an operator's body.
    functions
        Its operators, e.g. from ``tapml.compiler.reference.compile_reference``.
    tensors
        Inputs, state and weights by the name of their storage.
    replace
        Called with the name and the array of each value right after it was made; what it returns
        is what later steps read.
    symbols
        Values of symbols that no tensor's shape gives; a body may have them.

    Returns
    -------
    dict
        All values by name.

    Raises
    ------
    InputError
        If a tensor is missing or has another shape than the entry declares.
    """
    known = dict(symbols or {})
    values: dict[str, Array] = {}
    for name, value in entry.values.items():
        if entry.storages[value.storage].lifetime == "activation" or name != value.storage:
            continue
        if name not in tensors:
            raise InputError(f"entry {entry.name!r} needs a tensor for {name!r}")
        bind_shape(value.shape, tensors[name].shape, known, name)
        values[name] = tensors[name]
    for step in entry.steps:
        if isinstance(step, ViewStep):
            shape = [evaluate(extent, known) for extent in entry.values[step.result].shape]
            made = {step.result: np.ascontiguousarray(values[step.source]).reshape(shape)}
        else:
            made = _call(step, entry, functions, values, known)
        for name, array in made.items():
            values[name] = array if replace is None else replace(name, array)
    return values


def _call(
    step: CallStep,
    entry: Entry,
    functions: Functions,
    values: Mapping[str, Array],
    symbols: Mapping[str, int],
) -> dict[str, Array]:
    made: dict[str, Array] = {}
    for name in step.arguments:
        if name not in values:
            declared = entry.values[name]
            shape = [evaluate(extent, symbols) for extent in declared.shape]
            made[name] = np.empty(shape, dtype=dtype(declared.dtype).numpy_name)
            made[name].view(np.uint8).fill(_POISON) if made[name].ndim else made[name].fill(0)
    integers = {name: evaluate(number, symbols) for name, number in step.symbols}
    tensors = [made.get(name, values.get(name)) for name in step.arguments]
    functions[step.operator](*tensors, symbols=integers)
    return made
