"""TVM's part of a trial, loaded when it is asked for: float64 twins and the reference."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from tapml.carving.carved_test import CarvedTest
from tapml.compare.sensitivity import Twin
from tapml.graph.plan import Operator
from tapml.kernels.case_choice import Work, work_of


def compile_twins_of(
    operators: Mapping[str, Operator],
) -> Callable[[Iterable[Operator]], Mapping[str, Twin]]:
    """What an oracle compiles twins with."""

    def compile_them(_: Iterable[Operator]) -> Mapping[str, Twin]:
        from tapml.compiler.twin import compile_twins

        return compile_twins(operators.values())

    return compile_them


def reference_of(operator: Operator) -> Callable[[], Mapping[str, Twin]]:
    """What probes are made with: the operator in its own dtypes on the trusted platform."""

    def compile_it() -> Mapping[str, Twin]:
        from tapml.compiler.reference import compile_reference

        return compile_reference([operator])

    return compile_it


def reference_ms(
    reference: Mapping[str, Twin], operator: Operator, tests: Sequence[CarvedTest]
) -> float:
    """Mean time of one call of the reference over `tests`; of those of one shape, one is timed.

    Raises
    ------
    CompileError
        If the reference does not compile it.
    """
    from tapml.offload.times import reference_seconds

    known: dict[Work, float] = {}
    seconds = []
    for test in tests:
        work = work_of(test)
        if work not in known:
            known[work] = reference_seconds(reference, operator, test)
        seconds.append(known[work])
    return statistics.fmean(seconds) * 1e3
