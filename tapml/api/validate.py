"""Differential testing of a module: every operator and the whole, target against reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, overload

import numpy as np
import numpy.typing as npt

from tapml.api.device import Device, device
from tapml.api.module import Module
from tapml.api.observed import ObservedTest, observe
from tapml.api.validate_matrix import validate_on_all
from tapml.api.whole import WholeModule
from tapml.carving.replay import replay_operator
from tapml.carving.replay_memory import ReplayMemory
from tapml.carving.replay_results import ReplayResult
from tapml.carving.repro_failure import Failure
from tapml.compare.oracle import Oracle
from tapml.compare.policy import Policy
from tapml.compare.verdict import Status, Verdict, worse
from tapml.graph.plan import GraphPlan, Operator, Origin
from tapml.kernels.written import WrittenKernels
from tapml.localize.diagnosis import Diagnosis
from tapml.matrix.compiling import by_hand
from tapml.matrix.report import MatrixReport
from tapml_targets.errors import CompileError, InputError
from tapml_targets.library import Library
from tapml_targets.target import Target

if TYPE_CHECKING:
    from tapml.compiler.compiler import Compiler
    from tapml.compiler.reach import Reach

Array = npt.NDArray[Any]
# Every failure after these has most likely the same cause.
_DIAGNOSED: Final = 3
_DIAGNOSIS_SECONDS: Final = 30.0


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
    diagnosis
        Inner step, places and cause of a failure; None on a pass, or where it was not looked for.
    """

    operator: str
    status: Status
    worst_ratio: float
    tests: int
    reason: str
    sources: tuple[str, ...]
    diagnosis: Diagnosis | None = None

    @property
    def lines(self) -> list[str]:
        """The operator for a person: one line, and under it what is known of its failure."""
        why = "" if self.status == "pass" else f": {self.reason}"
        found = [] if self.diagnosis is None else self.diagnosis.lines()
        return [
            f"{self.status:<8} {self.operator} ({self.tests} tests, worst ratio "
            f"{self.worst_ratio:.3g}){why}",
            *(f"  {line}" for line in found),
        ]


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
        lines += [f"  {line}" for each in self.operators for line in each.lines]
        lines.append(f"  {self.whole.status:<8} the whole: {self.whole.reason}")
        return "\n".join(lines)


@overload
def validate(
    mod: Any,
    inputs: Sequence[npt.ArrayLike],
    *,
    reference: Device | None = None,
    target: Device | None = None,
    entry: str | None = None,
    weights: Mapping[str, Array] | None = None,
    policy: Policy | None = None,
    diagnose: bool = True,
    kernels: Sequence[Path] = (),
) -> ValidationReport: ...


@overload
def validate(
    mod: Any,
    inputs: Sequence[npt.ArrayLike],
    *,
    reference: Device | None = None,
    target: Sequence[Device],
    entry: str | None = None,
    weights: Mapping[str, Array] | None = None,
    policy: Policy | None = None,
    diagnose: bool = True,
    kernels: Sequence[Path] = (),
) -> MatrixReport: ...


def validate(
    mod: Any,
    inputs: Sequence[npt.ArrayLike],
    *,
    reference: Device | None = None,
    target: Device | Sequence[Device] | None = None,
    entry: str | None = None,
    weights: Mapping[str, Array] | None = None,
    policy: Policy | None = None,
    diagnose: bool = True,
    kernels: Sequence[Path] = (),
) -> ValidationReport | MatrixReport:
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
        The device under test; ``tapml.opencl()`` if None. Several, in a list: each is held against
        the reference, and then those that run the same kernels against one another.
    entry
        Which entry, where `mod` has several.
    weights
        Values of a GraphPlan's weights.
    policy
        The limits; the calibrated ones if None.
    diagnose
        Look for the inner step and the cause of failures, the first few of them: some seconds each;
        of one target alone.
    kernels
        Folders of hand-written kernels, which take the compiled ones' place.

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
    policy = policy or Policy()
    if target is not None and not isinstance(target, Device):
        if reference is not None and reference.name != "cpu":
            raise InputError(
                f"reference={reference.name!r}: several targets are held against the CPU; leave it "
                "out"
            )
        return validate_on_all(module, arrays, target, policy=policy, kernels=kernels)
    source, where = reference or device("cpu"), target or device("opencl")
    plan = module.plan
    named = dict(zip(module.graph.inputs, arrays, strict=True))
    with Compiler() as compiler:
        reach = reach_of(plan, symbols)
        compiled = dict(_compile(compiler, plan, where, reach, kernels))
        executor = Executor(plan, module.weights, compile_reference(plan))
        if source.platform != "cpu":
            executor.attach(source.session)
            for name, library in _compile(compiler, plan, source, reach):
                if isinstance(library, CompileError):
                    raise library
                executor.place(name, library)
        tests, outputs = observe(executor, module.entry, named)
        with Oracle(plan.operators, compile_twins, policy) as oracle:
            bench = _Bench(plan, compiled, where, compiler, oracle, policy, diagnose)
            reports = _replay(bench, tests)
        whole, actual = WholeModule(module, arrays, outputs, policy).run(compiled, where.session)
    status = whole.status
    for each in reports:
        status = worse(status, each.status)
    return ValidationReport(status, reports, whole, source.name, where.name, actual)


def _compile(
    compiler: Any,
    plan: GraphPlan,
    where: Device,
    reach: Reach,
    kernels: Sequence[Path] = (),
) -> list[tuple[str, Library | CompileError]]:
    from tapml.compiler.preflight import check

    target = Target(where.platform, limits=where.description.limits)
    written = WrittenKernels(kernels, target) if kernels else None
    by_name = dict(by_hand(plan.operators.values(), written))
    left = [operator for operator in plan.operators.values() if operator.name not in by_name]
    by_name |= {operator.name: each for operator, each in compiler.compile_all(left, target)}
    results: list[tuple[str, Library | CompileError]] = []
    for operator in plan.operators.values():
        outcome = by_name[operator.name]
        problems = (
            check(outcome, target.limits, reach=reach) if isinstance(outcome, Library) else ()
        )
        results.append(
            (operator.name, CompileError("; ".join(map(str, problems))) if problems else outcome)
        )
    return results


@dataclass(frozen=True)
class _Bench:
    """What the operators are replayed with."""

    plan: GraphPlan
    compiled: Mapping[str, Library | CompileError]
    where: Device
    compiler: Compiler
    oracle: Oracle
    policy: Policy
    diagnose: bool


def _replay(bench: _Bench, tests: Sequence[ObservedTest]) -> tuple[OperatorReport, ...]:
    reports: list[OperatorReport] = []
    with ReplayMemory(bench.where.session) as memory:
        for operator in bench.plan.operators.values():
            origins = bench.plan.origins_of(operator.name)
            sources = tuple(origin.source for origin in origins)
            library = bench.compiled[operator.name]
            if isinstance(library, CompileError):
                reports.append(OperatorReport(operator.name, "fail", 0.0, 0, str(library), sources))
                continue
            own = [test for test in tests if test.operator == operator.name]
            session, oracle, policy = bench.where.session, bench.oracle, bench.policy
            verdict = replay_operator(
                operator, own, library, session, oracle, policy, memory=memory
            )
            report = OperatorReport(
                operator.name,
                verdict.status,
                verdict.worst_ratio,
                len(verdict.results),
                verdict.reason,
                sources,
            )
            diagnosed = sum(each.diagnosis is not None for each in reports)
            if bench.diagnose and diagnosed < _DIAGNOSED and verdict.worst is not None:
                failure = _diagnose(bench, operator, library, verdict.worst, origins)
                report = replace(report, diagnosis=failure)
            reports.append(report)
    return tuple(reports)


def _diagnose(
    bench: _Bench,
    operator: Operator,
    library: Library,
    worst: ReplayResult,
    origins: tuple[Origin, ...],
) -> Diagnosis | None:
    if worst.verdict.status in ("pass", "not run"):
        return None
    from tapml.localize.apart import diagnosed

    failure = Failure(
        operator=operator,
        result=worst,
        library=library,
        device=bench.where.description,
        expectation=bench.oracle.appeal(worst.case),
        policy=bench.policy,
        origins=origins,
    )
    found = diagnosed(
        failure, bench.compiler, oracle=bench.oracle, budget_seconds=_DIAGNOSIS_SECONDS
    )
    return found.diagnosis
