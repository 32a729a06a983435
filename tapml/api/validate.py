"""Differential testing of a module: every operator and the whole, target against reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tapml.api.device import Device, device
from tapml.api.module import Module
from tapml.api.observed import ObservedTest, observe
from tapml.api.whole import run_whole
from tapml.carving.replay import replay_operator
from tapml.carving.replay_memory import ReplayMemory
from tapml.compare.oracle import Oracle
from tapml.compare.policy import Policy
from tapml.compare.verdict import Status, Verdict, worse
from tapml.graph.plan import GraphPlan
from tapml_targets.errors import CompileError
from tapml_targets.library import Library
from tapml_targets.target import Target

if TYPE_CHECKING:
    from tapml.compiler.reach import Reach

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class OperatorReport:
    """One operator on the target.

    Attributes
    ----------
    operator
        Its name.
    status
        ``pass``, ``degraded``, ``fail`` or ``not run``.
    worst_ratio
        Largest error over (sensitivity + ulp).
    tests
        Call sites replayed.
    reason
        Why, in numbers.
    sources
        Lines of the model it comes from.
    """

    operator: str
    status: Status
    worst_ratio: float
    tests: int
    reason: str
    sources: tuple[str, ...]


@dataclass(frozen=True)
class ValidationReport:
    """What :func:`validate` found.

    Attributes
    ----------
    status
        The gravest of all.
    operators
        One report per operator, in graph order.
    whole
        The verdict on the module as one call on the target.
    reference, target
        Names of the devices.
    outputs
        The target's outputs; empty where the whole module could not be run.
    """

    status: Status
    operators: tuple[OperatorReport, ...]
    whole: Verdict
    reference: str
    target: str
    outputs: tuple[Array, ...]

    @property
    def passed(self) -> bool:
        """Whether everything ran and passed."""
        return self.status == "pass"

    def __str__(self) -> str:
        lines = [f"{self.status}: {self.target} against {self.reference}"]
        lines += [
            f"  {each.status:<8} {each.operator} ({each.tests} tests, worst ratio "
            f"{each.worst_ratio:.3g}){'' if each.status == 'pass' else ': ' + each.reason}"
            for each in self.operators
        ]
        lines.append(f"  {self.whole.status:<8} the whole: {self.whole.reason}")
        return "\n".join(lines)


def validate(
    mod: Any,
    inputs: Sequence[npt.ArrayLike],
    *,
    reference: Device | None = None,
    target: Device | None = None,
    entry: str | None = None,
    weights: Mapping[str, Array] | None = None,
    policy: Policy | None = None,
) -> ValidationReport:
    """Run a module on reference and target and compare every operator and the whole.

    Parameters
    ----------
    mod
        A :class:`Module`, a Relax module, a GraphPlan or a ``torch.nn.Module``.
    inputs
        Arrays in the order of ``Module.inputs``; a torch module is exported with them.
    reference
        The trusted device; ``tapml.cpu()`` if None, which runs in this process.
    target
        The device under test; ``tapml.opencl()`` if None.
    entry
        Which entry, where `mod` has several.
    weights
        Values of a GraphPlan's weights.
    policy
        The limits; the calibrated ones if None.

    Raises
    ------
    InputError
        If an input does not fit; the message names it.
    UnsupportedOperatorError
        If the module cannot be imported.
    """
    from tapml.compiler.compiler import Compiler
    from tapml.compiler.reach import reach_of
    from tapml.compiler.reference import compile_reference
    from tapml.compiler.twin import compile_twins
    from tapml.execute.executor import Executor

    arrays = [np.asarray(each, order="C") for each in inputs]
    module = mod if isinstance(mod, Module) else Module(mod, entry, inputs=arrays, weights=weights)
    symbols = {module.entry: module.bind(arrays)}
    source, where = reference or device("cpu"), target or device("opencl")
    policy = policy or Policy()
    plan = module.plan
    named = dict(zip(module.graph.inputs, arrays, strict=True))
    with Compiler() as compiler:
        reach = reach_of(plan, symbols)
        compiled = dict(_compile(compiler, plan, where, reach))
        executor = Executor(plan, module.weights, compile_reference(plan))
        if source.platform != "cpu":
            executor.attach(source.session)
            for name, library in _compile(compiler, plan, source, reach):
                if isinstance(library, CompileError):
                    raise library
                executor.place(name, library)
        tests, outputs = observe(executor, module.entry, named)
    with Oracle(plan.operators, compile_twins, policy) as oracle:
        reports = _replay(plan, tests, compiled, where, oracle, policy)
        whole, actual = run_whole(module, arrays, outputs, compiled, where, policy)
    status = whole.status
    for each in reports:
        status = worse(status, each.status)
    return ValidationReport(status, reports, whole, source.name, where.name, actual)


def _compile(
    compiler: Any, plan: GraphPlan, where: Device, reach: Reach
) -> list[tuple[str, Library | CompileError]]:
    from tapml.compiler.preflight import check

    target = Target(where.platform, limits=where.description.limits)
    results: list[tuple[str, Library | CompileError]] = []
    for operator, outcome in compiler.compile_all(plan.operators.values(), target):
        compiled = isinstance(outcome, Library)
        problems = check(outcome, target.limits, reach=reach) if compiled else ()
        results.append(
            (operator.name, CompileError("; ".join(map(str, problems))) if problems else outcome)
        )
    return results


def _replay(
    plan: GraphPlan,
    tests: Sequence[ObservedTest],
    compiled: Mapping[str, Library | CompileError],
    where: Device,
    oracle: Oracle,
    policy: Policy,
) -> tuple[OperatorReport, ...]:
    reports = []
    with ReplayMemory(where.session) as memory:
        for operator in plan.operators.values():
            sources = tuple(origin.source for origin in plan.origins_of(operator.name))
            library = compiled[operator.name]
            if isinstance(library, CompileError):
                reports.append(OperatorReport(operator.name, "fail", 0.0, 0, str(library), sources))
                continue
            own = [test for test in tests if test.operator == operator.name]
            verdict = replay_operator(
                operator, own, library, where.session, oracle, policy, memory=memory
            )
            reports.append(
                OperatorReport(
                    operator.name,
                    verdict.status,
                    verdict.worst_ratio,
                    len(verdict.results),
                    verdict.reason,
                    sources,
                )
            )
    return tuple(reports)
