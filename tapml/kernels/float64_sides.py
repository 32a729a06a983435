"""TVM's part of a trial, loaded on demand: float64 twins and the reference."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from tapml.kernels.sample_tests import Work, work_of
from tapml.oracles.twin_runs import Twin
from tapml.plan.graph_plan import Operator
from tapml.suite.carved_test import CarvedTest


def compile_twins_of(
    operators: Mapping[str, Operator],
) -> Callable[[Iterable[Operator]], Mapping[str, Twin]]:
    """Compile twins for an oracle."""

    def compile_them(_: Iterable[Operator]) -> Mapping[str, Twin]:
        from tapml.compiler.twin import compile_twins

        return compile_twins(operators.values())

    return compile_them


def reference_of(operator: Operator) -> Callable[[], Mapping[str, Twin]]:
    """The reference for probes: the operator in its own dtypes on the trusted platform."""

    def compile_it() -> Mapping[str, Twin]:
        from tapml.compiler.reference import compile_reference

        return compile_reference([operator])

    return compile_it


def reference_ms(
    reference: Mapping[str, Twin], operator: Operator, tests: Sequence[CarvedTest]
) -> float:
    """Mean time of one call of the reference over `tests`, timed once per shape.

    Raises
    ------
    CompileError
        If the reference does not compile it.
    """
    from tapml.replaying.times import reference_seconds

    known: dict[Work, float] = {}
    seconds = []
    for test in tests:
        work = work_of(test)
        if work not in known:
            known[work] = reference_seconds(reference, operator, test)
        seconds.append(known[work])
    return statistics.fmean(seconds) * 1e3
