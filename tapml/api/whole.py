"""A whole module as one call on the target, judged as if it were one operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tapml.api.module import Module
from tapml.compare.expectation import Expectation
from tapml.compare.judge import judge
from tapml.compare.movements import Movements
from tapml.compare.policy import Policy
from tapml.compare.sensitivity import Case, expect
from tapml.compare.verdict import Verdict, not_run
from tapml.graph.plan import Entry, Operator, OutputKind
from tapml_rpc.client import Session
from tapml_targets.dtype import dtype
from tapml_targets.errors import CompileError, InputError
from tapml_targets.library import Library, Parameter

Array = npt.NDArray[Any]


class WholeModule:
    """The module as one call, and what float64 makes of it.

    Parameters
    ----------
    module, arrays
        What runs, on which inputs.
    outputs
        The reference's, by name.
    policy
        The limits.

    Attributes
    ----------
    operator
        The module seen as one operator.
    """

    def __init__(
        self,
        module: Module,
        arrays: Sequence[Array],
        outputs: Mapping[str, Array],
        policy: Policy,
    ) -> None:
        self.operator = _as_operator(module)
        self._module, self._arrays, self._policy = module, arrays, policy
        self._reference = [outputs[name] for name in module.graph.outputs]

    def run(
        self, compiled: Mapping[str, Library | CompileError], session: Session
    ) -> tuple[Verdict, tuple[Array, ...]]:
        """The verdict on one call on a device, and its outputs, which are none where it is not run.

        Raises
        ------
        DeviceLostError
            If the call takes the device down.
        """
        from tapml.compiler.link import link_entries
        from tapml.execute.plan_runner import PlanRunner

        libraries = {n: each for n, each in compiled.items() if isinstance(each, Library)}
        if len(libraries) < len(compiled):
            missing = ", ".join(sorted(compiled.keys() - libraries.keys()))
            return not_run(f"these operators have no kernel: {missing}"), ()
        module = self._module
        inputs = dict(zip(module.graph.inputs, self._arrays, strict=True))
        linked = link_entries(module.plan, libraries)
        with PlanRunner(module.plan, module.weights, linked, session) as runner:
            result = runner.run(module.entry, inputs)
        actual = [np.array(result[name]) for name in module.graph.outputs]
        verdict = judge(self.operator, self.expectation, self._reference, actual, self._policy)
        return verdict, tuple(actual)

    @cached_property
    def expectation(self) -> Expectation:
        """What its outputs should be."""
        arrays, policy = list(self._arrays), self._policy
        case = Case(self.operator, arrays, self._reference, {}, [None] * len(arrays))
        return expect(case, _twin(self._module), Movements(policy.seed), policy.repeats)


def _as_operator(module: Module) -> Operator:
    """The module seen as one operator: what it reads, what it writes."""
    graph = module.graph
    ports = [(name, "input") for name in graph.inputs] + [
        (name, "output") for name in graph.outputs
    ]
    return Operator(
        name=module.entry,
        hash="",
        parameters=tuple(
            Parameter(name, graph.values[name].shape, graph.values[name].dtype, role)  # type: ignore[arg-type]
            for name, role in ports
        ),
        symbols=graph.symbols,
        function="",
        script="",
        output_kinds=tuple(_kind(module, name) for name in graph.outputs),
    )


def _kind(module: Module, output: str) -> OutputKind:
    """What an output means: what the operator that writes its storage says of it."""
    graph = module.graph
    storage = graph.values[output].storage
    for call in reversed(graph.calls):
        operator = module.plan.operators[call.operator]
        written = [
            name
            for parameter, name in zip(operator.parameters, call.arguments, strict=True)
            if parameter.role != "input"
        ]
        for name, kind in zip(written, operator.output_kinds, strict=True):
            if graph.values[name].storage == storage:
                return kind
    return "value"


def _twin(module: Module) -> Any:
    """The module in float64: every operator's twin, step by step."""
    from tapml.compare.formats import as_float64
    from tapml.compiler.twin import compile_twins
    from tapml.graph.interpreter import run_entry

    twins = compile_twins(module.plan.operators.values())
    graph = _widened(module.graph)
    weights = {
        name: as_float64(array, module.plan.weights[name].dtype)
        if dtype(module.plan.weights[name].dtype).is_float
        else array
        for name, array in module.weights.items()
    }

    def run(*arrays: Array, symbols: Mapping[str, int] | None = None) -> None:
        if symbols:
            raise InputError("a module takes no symbols beside its tensors")
        count = len(graph.inputs)
        given = dict(zip(graph.inputs, arrays[:count], strict=True))
        by_storage = {graph.values[name].storage: array for name, array in given.items()}
        values = run_entry(graph, twins, {**weights, **by_storage})
        for name, destination in zip(graph.outputs, arrays[count:], strict=True):
            destination[...] = values[name]

    return run


def _widened(entry: Entry) -> Entry:
    values = {
        name: replace(value, dtype="float64") if dtype(value.dtype).is_float else value
        for name, value in entry.values.items()
    }
    return replace(entry, values=values)
