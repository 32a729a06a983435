"""Module: a compilable program with named inputs and outputs (M of the paper)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tapml.plan.graph_plan import Entry, GraphPlan, Value
from tapml_targets.errors import InputError
from tapml_targets.expression import Expression, bind_shape, evaluate

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Port:
    """An input or output: `shape` may hold symbols (``"n"``); `dtype` names the element type."""

    name: str
    shape: tuple[Expression, ...]
    dtype: str


class Module:
    """A model, or a part of one, ready to be compiled.

    Parameters
    ----------
    source
        A Relax module (``tvm.IRModule``), a :class:`torch.nn.Module`, or a GraphPlan.
    entry
        The function to call. For a torch module, the name it gets (default: ``main``); for a
        Relax module or a plan, an existing one (default: ``main``, or the only one).
    inputs
        Positional example inputs; required to export a torch module.
    weights
        Values of a GraphPlan's weights by name; torch modules bring theirs.

    Attributes
    ----------
    inputs, output
        Ports in calling order, without recurrent state, which starts from zero.

    Raises
    ------
    InputError
        If the source has another type, has no such entry, or a weight is missing.
    UnsupportedOperatorError
        If it uses operators that cannot be imported; all are named with their lines.

    Examples
    --------
    >>> import torch
    >>> mod = Module(torch.nn.Linear(8, 4), inputs=[torch.ones(2, 8)])
    >>> mod.output[0].shape, mod.output[0].dtype
    ((2, 4), 'float32')
    """

    def __init__(
        self,
        source: Any,
        entry: str | None = None,
        *,
        inputs: Sequence[Any] | None = None,
        weights: Mapping[str, Array] | None = None,
    ) -> None:
        self.plan, self.weights = _import(source, entry, inputs, weights)
        self._source = source
        names = tuple(self.plan.entries)
        if entry is None and len(names) > 1:
            raise InputError(
                f"the plan has several entries ({', '.join(names)}); name one with entry="
            )
        self.entry = names[0] if entry is None else entry
        if self.entry not in self.plan.entries:
            raise InputError(f"no entry {self.entry!r}; there are: {', '.join(names)}")
        if len(names) > 1:
            self.plan = _only(self.plan, self.entry)
        graph = self.graph
        self.inputs = tuple(_port(graph.values[name]) for name in graph.inputs)
        self.output = tuple(_port(graph.values[name]) for name in graph.outputs)

    @property
    def graph(self) -> Entry:
        """The entry's steps and values."""
        return self.plan.entries[self.entry]

    def bind(self, arrays: Sequence[Array]) -> dict[str, int]:
        """Check inputs and bind the shape symbols.

        Raises
        ------
        InputError
                If a count, shape or dtype does not match; the message names the input.
        """
        if len(arrays) != len(self.inputs):
            raise InputError(
                f"{self.entry} takes {len(self.inputs)} inputs "
                f"({', '.join(port.name for port in self.inputs)}), got {len(arrays)}"
            )
        symbols: dict[str, int] = {}
        for port, array in zip(self.inputs, arrays, strict=True):
            bind_shape(port.shape, array.shape, symbols, f"{self.entry}: input {port.name!r}")
            if str(array.dtype) != port.dtype:
                raise InputError(
                    f"{self.entry}: input {port.name!r}: expected dtype {port.dtype}, "
                    f"got {array.dtype}; convert it with .astype({port.dtype!r})"
                )
        return symbols

    def run(self, arrays: Sequence[Array]) -> list[Array] | None:
        """What the torch module itself gives, tensor by tensor; None for other sources."""
        if not _is_torch(self._source):
            return None
        import torch
        from torch.utils import _pytree

        from tapml.importing.fixed_results import decided_results

        training = self._source.training
        try:
            with torch.no_grad(), decided_results():
                given = self._source.eval()(*(torch.from_numpy(each.copy()) for each in arrays))
        finally:
            self._source.train(training)
        return [each.numpy() for each in _pytree.tree_leaves(given)]

    def output_shapes(self, arrays: Sequence[Array]) -> tuple[tuple[int, ...], ...]:
        """Concrete shapes of the outputs for these inputs."""
        symbols = self.bind(arrays)
        return tuple(
            tuple(evaluate(extent, symbols) for extent in port.shape) for port in self.output
        )


def _port(value: Value) -> Port:
    return Port(value.name, value.shape, value.dtype)


def _only(plan: GraphPlan, entry: str) -> GraphPlan:
    """The plan with one entry and the operators it uses."""
    from dataclasses import replace

    used = {call.operator for call in plan.entries[entry].calls}
    return replace(
        plan,
        entries={entry: plan.entries[entry]},
        operators={name: plan.operators[name] for name in plan.operators if name in used},
    )


def _import(
    source: Any,
    entry: str | None,
    inputs: Sequence[Any] | None,
    weights: Mapping[str, Array] | None,
) -> tuple[GraphPlan, dict[str, Array]]:
    if isinstance(source, GraphPlan):
        missing = [name for name in source.weights if name not in (weights or {})]
        if missing:
            raise InputError(
                f"the plan needs weights that were not given: {', '.join(missing[:5])}; "
                "pass weights={name: array}"
            )
        return source, dict(weights or {})
    if _is_torch(source):
        return _import_torch(source, entry or "main", inputs)
    if any(base.__name__ == "IRModule" for base in type(source).__mro__):
        from tapml.importing.importer import import_relax

        imported = import_relax(source, entry)
        return imported.plan, dict(imported.weights)
    raise InputError(
        f"expected a Relax module, a torch.nn.Module or a GraphPlan, got {type(source).__name__}"
    )


def _is_torch(source: object) -> bool:
    return any(base.__module__.startswith("torch.nn") for base in type(source).__mro__)


def _import_torch(
    module: Any, entry: str, inputs: Sequence[Any] | None
) -> tuple[GraphPlan, dict[str, Array]]:
    if inputs is None:
        raise InputError("a torch module is exported with example inputs: pass inputs=[...]")
    import torch

    from tapml.importing.importer import import_module

    examples = tuple(
        each if isinstance(each, torch.Tensor) else torch.from_numpy(np.array(each))
        for each in inputs
    )
    training = module.training
    try:
        imported = import_module(module.eval(), examples, name=entry)
    finally:
        module.train(training)
    return imported.plan, dict(imported.weights)
