"""A complete module as one call on the target, judged like an operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tapml.importing.module import Module
from tapml.oracles.sensitivity import expect
from tapml.oracles.twin_runs import Case, Perturbations, is_exact, is_float
from tapml.plan.graph_plan import Entry, Operator, OutputKind
from tapml.verdicts.expectation import Expectation
from tapml.verdicts.judge import judge
from tapml.verdicts.operator_class import traits_of
from tapml.verdicts.policy import Policy
from tapml.verdicts.verdict import Cause, Verdict, not_run
from tapml_rpc.client import Session
from tapml_targets.dtype import dtype
from tapml_targets.errors import CompileError, InputError
from tapml_targets.float_formats import float_format
from tapml_targets.library import Library, Parameter

Array = npt.NDArray[Any]


class ModuleCall:
    """The module as one call, and its float64 expectation.

    Parameters
    ----------
    module, arrays
        The module and its inputs.
    outputs
        The reference's outputs by name.
    policy
        The limits.

    Attributes
    ----------
    operator
        The module as one operator.
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
        """Run the module on a device; returns the verdict and the outputs, empty if not run.

        Raises
        ------
        DeviceLostError
            If the call crashes the device.
        """
        from tapml.compiler.link import link_entries
        from tapml.execute.plan_runner import PlanRunner

        libraries = {n: each for n, each in compiled.items() if isinstance(each, Library)}
        if len(libraries) < len(compiled):
            missing = ", ".join(sorted(compiled.keys() - libraries.keys()))
            return not_run(Cause.NO_KERNEL, f"these operators have no kernel: {missing}"), ()
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
        """The expected outputs."""
        arrays, policy = list(self._arrays), self._policy
        case = Case(self.operator, arrays, self._reference, {}, [None] * len(arrays))
        return expect(
            case,
            _twin(self._module),
            Perturbations(policy.seed),
            policy.repeats,
            narrowest_dtype(self._module),
        )


def _as_operator(module: Module) -> Operator:
    """The module as one operator with its inputs and outputs."""
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


def narrowest_dtype(module: Module) -> str:
    """The least precise dtype on the module's way; empty if its operators do not tell.

    Its operators compute in it, or one rounds to it what another reads.
    """
    graph, operators = module.graph, module.plan.operators
    found: set[str] = set()
    read: set[str] = set()
    for call in reversed(graph.calls):
        operator = operators[call.operator]
        storages = {
            parameter.name: graph.values[name].storage
            for parameter, name in zip(operator.parameters, call.arguments, strict=True)
        }
        for parameter, traits in zip(operator.written, traits_of(operator), strict=True):
            found.add(traits.arithmetic)
            rounds = is_float(parameter) and not is_exact(traits)
            if rounds and storages[parameter.name] in read:
                found.add(parameter.dtype)
        read |= {storages[parameter.name] for parameter in operator.read}
    return min(found - {""}, key=lambda each: float_format(each).mantissa_bits, default="")


def _kind(module: Module, output: str) -> OutputKind:
    """The kind of an output, from the operator that writes its storage."""
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
    """The module in float64, which runs the operators' twins."""
    from tapml.compiler.twin import compile_twins
    from tapml.rooting.interpreter import run_entry
    from tapml_targets.float_formats import as_float64

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
