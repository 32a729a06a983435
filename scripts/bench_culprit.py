"""Finds one wrong operator by carved tests, and by three ways that have none.

Bisection: the first k operators in graph order run on the target, the rest on the reference, the
model's logits are compared, and the range of k is halved until one operator is left. Linear
reduction, as Polygraphy's ``debug reduce --mode linear``: k goes down from all operators one by one
until the model is right. The reference's logits are free for both. Bottom-up: unit tests of the
operators in graph order, of the same shapes with random inputs.
"""

from __future__ import annotations

import re
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from scripts.carved_model import compile_all, import_shipped
from scripts.mutants.made_inputs import made_test
from tapml.carving.record import carve
from tapml.compiler.compiler import Compiler
from tapml.compiler.reference import compile_reference
from tapml.compiler.twin import compile_twins
from tapml.execute.executor import Executor
from tapml.importing.cache import PlanCache
from tapml.models import LoadedModel, calibration_prompts
from tapml.oracles.carved_case import CarvedCase
from tapml.oracles.oracle import Oracle
from tapml.oracles.twin_runs import Twin
from tapml.plan.graph_plan import GraphPlan
from tapml.plan.rooting_report import RootingReport
from tapml.replaying.memory import ReplayMemory
from tapml.replaying.replayer import replay
from tapml.rooting.rooting import root
from tapml.suite.suite import Suite
from tapml.verdicts.policy import Policy
from tapml.workloads import workload_of
from tapml.workloads.trace import ReferenceTrace
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.errors import SetupError
from tapml_targets.library import CodeModule, Library
from tapml_targets.target import Target

# Every fourth operator is made wrong, one at a time.
_STRIDE: Final = 4
_NEW_TOKENS: Final = 2
_STORE: Final = r"(?m)^(\s*{name}_ptr\[(.+?)\] = )(.+);$"


@dataclass(frozen=True)
class _Bench:
    """The warm state that both sides share."""

    model: LoadedModel
    plan: GraphPlan
    libraries: Mapping[str, Library]
    session: Session
    executor: Executor
    suite: Suite
    oracle: Oracle
    twins: Mapping[str, Twin]
    policy: Policy
    trace: ReferenceTrace
    made: Sequence[CarvedCase]


@dataclass(frozen=True)
class _Search:
    """The result of one search: operators run, seconds, and the operator named."""

    operator_runs: int
    seconds: float
    named: str


@dataclass(frozen=True)
class _Planted:
    """One wrong operator and its searches; `cold` also computes the expectations."""

    operator: str
    carved: _Search
    cold: _Search
    bisected: _Search
    reduced: _Search
    bottom_up: _Search


def measure() -> list[dict[str, Any]]:
    """Plant one wrong operator after the other and search by both ways."""
    model, imported = import_shipped()
    plan, policy = imported.plan, Policy()
    reference = compile_reference(plan)
    deviation = _logit_deviation(plan, root(model, imported, cache=PlanCache()))
    twins = compile_twins(plan.operators.values())
    with tempfile.TemporaryDirectory() as folder, Compiler() as compiler:
        path = Path(folder) / "suite"
        prompts = calibration_prompts(model, 1)
        with (
            open_local("opencl") as session,
            Oracle(plan.operators, lambda _: twins, policy) as oracle,
        ):
            executor = Executor(plan, imported.weights, reference, session)
            trace = workload_of(model).trace_all(executor, prompts, _NEW_TOKENS, deviation)
            with carve(model, executor, prompts, path, max_new_tokens=_NEW_TOKENS) as suite:
                target = Target("opencl", limits=session.device.limits)
                libraries = compile_all(compiler, plan.operators.values(), target)
                made = _made_tests(suite, plan, reference)
                bench = _Bench(
                    model, plan, libraries, session, executor, suite, oracle, twins, policy, trace,
                    made,
                )  # fmt: skip
                pairs = [_search(bench, name) for name in _culprits(plan, libraries)]
    return _rows(plan, pairs)


def _culprits(plan: GraphPlan, libraries: Mapping[str, Library]) -> list[str]:
    floats = [o.name for o in plan.operators.values() if o.written[0].dtype == "float32"]
    return [name for name in floats if _wrong(libraries[name], name) is not None][::_STRIDE]


def _wrong(library: Library, operator: str) -> Library | None:
    """The Library with every second element of its output doubled; None if it has no such store."""
    (module,) = library.modules
    output = next(p.name for p in library.operators[operator].parameters if p.role == "output")
    pattern = _STORE.format(name=re.escape(output))
    odd = r"\1(((\2) & 1) ? 1.0f : 2.0f) * (\3);"
    source, count = re.subn(pattern, odd, module.code.decode())
    if not count:
        return None
    return replace(library, modules=(CodeModule(module.dialect, source.encode()),))


def _search(bench: _Bench, culprit: str) -> _Planted:
    wrong = _wrong(bench.libraries[culprit], culprit)
    if wrong is None:
        raise SetupError(f"{culprit} has no store that can be made wrong")
    libraries = {**bench.libraries, culprit: wrong}
    # Once without counting, so that neither side pays for building the wrong kernel.
    _by_carved_tests(bench, libraries, bench.oracle)
    carved = _by_carved_tests(bench, libraries, bench.oracle)
    with Oracle(bench.plan.operators, lambda _: bench.twins, bench.policy) as oracle:
        cold = _by_carved_tests(bench, libraries, oracle)
    _by_bisection(bench, libraries)
    bisected = _by_bisection(bench, libraries)
    _by_carved_tests(bench, libraries, bench.oracle, bench.made)
    bottom_up = _by_carved_tests(bench, libraries, bench.oracle, bench.made)
    return _Planted(
        culprit, carved, cold, bisected, _by_linear_reduction(bench, libraries), bottom_up
    )


def _by_carved_tests(
    bench: _Bench,
    libraries: Mapping[str, Library],
    oracle: Oracle,
    tests: Sequence[CarvedCase] | None = None,
) -> _Search:
    """One test per operator, carved or given, in graph order, until one does not pass."""
    operators = bench.suite.operators
    runs, seen = 0, set()
    started = time.perf_counter()
    named = ""
    with ReplayMemory(bench.session) as memory:
        for test in bench.suite.tests() if tests is None else tests:
            if test.operator in seen:
                continue
            seen.add(test.operator)
            result = replay(
                operators[test.operator],
                test,
                bench.session.upload(libraries[test.operator]),
                bench.session,
                oracle,
                bench.policy,
                memory=memory,
            )
            # Each test runs twice, under two poisons.
            runs += 2
            if result.verdict.status != "pass":
                named = test.operator
                break
    return _Search(runs, time.perf_counter() - started, named)


def _by_bisection(bench: _Bench, libraries: Mapping[str, Library]) -> _Search:
    """The smallest prefix of the operators, in graph order, that makes the model wrong."""
    names = list(bench.plan.operators)
    steps = _calls_per_check(bench)
    runs = 0
    for name in names:
        bench.executor.unplace(name)
    started = time.perf_counter()
    low, high = 0, len(names)
    placed = 0
    wrong_seen = False
    while low < high:
        middle = (low + high) // 2
        while placed <= middle:
            bench.executor.place(names[placed], libraries[names[placed]])
            placed += 1
        while placed > middle + 1:
            placed -= 1
            bench.executor.unplace(names[placed])
        runs += steps
        if workload_of(bench.model).check_model(bench.executor, bench.trace).status == "pass":
            low = middle + 1
        else:
            high, wrong_seen = middle, True
    seconds = time.perf_counter() - started
    for name in names[:placed]:
        bench.executor.unplace(name)
    return _Search(runs, seconds, names[low] if wrong_seen else "")


def _by_linear_reduction(bench: _Bench, libraries: Mapping[str, Library]) -> _Search:
    """Take operators off the target one by one, the last first, until the model is right."""
    names = list(bench.plan.operators)
    steps, runs = _calls_per_check(bench), 0
    for name in names:
        bench.executor.place(name, libraries[name])
    started = time.perf_counter()
    named = ""
    for name in reversed(names):
        runs += steps
        if workload_of(bench.model).check_model(bench.executor, bench.trace).status == "pass":
            break
        bench.executor.unplace(name)
        named = name
    seconds = time.perf_counter() - started
    for name in names:
        bench.executor.unplace(name)
    return _Search(runs, seconds, named)


def _made_tests(suite: Suite, plan: GraphPlan, reference: Mapping[str, Twin]) -> list[CarvedCase]:
    """For each operator a test of the shapes of its first carved one, with random inputs."""
    made: dict[str, CarvedCase] = {}
    for test in suite.tests():
        name = test.operator
        if name not in made:
            made[name] = made_test(plan.operators[name], test, reference[name], "random")
    return list(made.values())


def _calls_per_check(bench: _Bench) -> int:
    """Operators that one model-wise check runs."""
    entries = bench.plan.entries
    decodes = sum(len(each.choices) - 1 for each in bench.trace.cases)
    prefills = len(bench.trace.cases)
    return prefills * len(entries["prefill"].calls) + decodes * len(entries["decode"].calls)


def _logit_deviation(plan: GraphPlan, rooting: RootingReport) -> float:
    logits = {(entry.name, entry.outputs[0]) for entry in plan.entries.values()}
    return max(
        each.error
        for each in rooting.compared
        if each.kind == "output" and (each.entry, each.value) in logits
    )


def _rows(plan: GraphPlan, planted: Sequence[_Planted]) -> list[dict[str, Any]]:
    def row(
        what: str, carved: float, bisected: float, reduced: float, bottom_up: float
    ) -> dict[str, Any]:
        return {
            "part": "culprit",
            "what": what,
            "planted": len(planted),
            "among": len(plan.operators),
            "carved tests": round(carved, 1),
            "bisection": round(bisected, 1),
            "linear reduction": round(reduced, 1),
            "bottom-up": round(bottom_up, 1),
            "ratio": round(bisected / carved, 1),
            "met": carved < bisected,
        }

    def named(searches: Sequence[_Search]) -> int:
        return sum(
            each.operator == search.named for each, search in zip(planted, searches, strict=True)
        )

    right = named([each.carved for each in planted])
    sides = [
        [each.bisected for each in planted],
        [each.reduced for each in planted],
        [each.bottom_up for each in planted],
    ]
    runs = [statistics.mean(each.operator_runs for each in side) for side in sides]
    milliseconds = [1e3 * statistics.mean(each.seconds for each in side) for side in sides]
    return [
        row(
            "operator runs, mean",
            statistics.mean(each.carved.operator_runs for each in planted),
            *runs,
        ),
        row(
            "milliseconds, mean",
            1e3 * statistics.mean(each.carved.seconds for each in planted),
            *milliseconds,
        ),
        row(
            "milliseconds with float64 expectations computed on the way, mean",
            1e3 * statistics.mean(each.cold.seconds for each in planted),
            *milliseconds,
        ),
        row("named rightly", right, *map(named, sides))
        | {"ratio": None, "met": right == len(planted)},
    ]
