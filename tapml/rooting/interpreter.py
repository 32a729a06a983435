"""Runs an entry step by step and keeps every value: for rooting and for bodies.

Unlike the executor it neither reuses memory nor uses a device, so every value can be inspected and
replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tapml.plan.graph_plan import CallStep, Entry, ViewStep
from tapml_targets.dtype import dtype
from tapml_targets.errors import InputError
from tapml_targets.expression import bind_shape, evaluate

Array = npt.NDArray[Any]
# Outputs are filled with this byte, so that unwritten elements show.
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
    """Run an entry and return all its values by name.

    Parameters
    ----------
    entry
        Of a plan, or of an operator's body.
    functions
        Its operators, e.g. from ``tapml.compiler.reference.compile_reference``.
    tensors
        Inputs, state and weights by storage name.
    replace
        Called with the name and array of each new value; later steps read what it returns.
    symbols
        Values of symbols that no tensor's shape binds; a body may have them.

    Raises
    ------
    InputError
        If a tensor is missing or its shape differs from the entry's.
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
