"""The target's own run beside the reference's: a deviation begins where a kernel is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest

from tapml.execute.executor import Executor
from tapml.offload.error_growth import WORST, Deviations, error_growth, text_of
from tapml.session.report_map import map_of
from tapml.workloads import workload_of
from tapml.workloads.trace import CaseTrace
from tests.small_llama import PROMPTS, SmallLlama

Function = Callable[..., None]


class Wrong(Mapping[str, Function]):
    """The reference with one operator whose output is off by a thousandth."""

    def __init__(self, right: Mapping[str, Function], operator: str, factor: float) -> None:
        self._right, self._operator, self._factor = right, operator, factor

    def __getitem__(self, name: str) -> Function:
        function = self._right[name]
        if name != self._operator:
            return function

        def wrong(*arrays: np.ndarray) -> None:
            function(*arrays)
            arrays[-1][...] *= np.float32(self._factor)

        return wrong

    def __iter__(self) -> Iterator[str]:
        return iter(self._right)

    def __len__(self) -> int:
        return len(self._right)


@pytest.fixture(scope="module")
def trace(llama: SmallLlama) -> CaseTrace:
    workload = workload_of(llama.model)
    return workload.trace(llama.executor(), workload.as_case(PROMPTS[0]), 3, 0.0)


def grown(llama: SmallLlama, trace: CaseTrace, operator: str, factor: float) -> Deviations:
    wrong = Executor(llama.plan, llama.weights, Wrong(llama.reference, operator, factor))
    return error_growth(llama.plan, workload_of(llama.model), trace, llama.executor(), wrong)


def test_nothing_deviates_before_the_wrong_operator_and_everything_after_it_may(
    llama: SmallLlama, trace: CaseTrace
) -> None:
    calls = llama.plan.entries["prefill"].calls
    middle = calls[len(calls) // 2]
    found = grown(llama, trace, middle.operator, 1.001)["prefill"]
    assert list(found) == [call.site for call in calls]
    first = next(index for index, call in enumerate(calls) if call.operator == middle.operator)
    deviations = list(found.values())
    assert deviations[:first] == [0.0] * first
    assert deviations[first] == pytest.approx(1e-3, rel=0.01)
    assert deviations[-1] > 0


def test_a_run_that_is_right_deviates_nowhere_and_one_of_nan_is_the_worst(
    llama: SmallLlama, trace: CaseTrace
) -> None:
    operator = llama.plan.entries["prefill"].calls[-1].operator
    right = grown(llama, trace, operator, 1.0)
    assert {entry for entry, sites in right.items() if sites} == {"prefill", "decode"}
    assert {each for sites in right.values() for each in sites.values()} == {0.0}
    assert grown(llama, trace, operator, np.nan)["prefill"].popitem()[1] == WORST


def test_the_map_has_a_bar_and_the_number_and_the_line_names_the_largest(llama: SmallLlama) -> None:
    entry = llama.plan.entries["decode"]
    first, second = entry.calls[0].site, entry.calls[1].site
    drawn = map_of(llama.plan, entry, {first: 0.0, second: 1e-6})
    nodes = {each.node.name: each.node for each in drawn.nodes}
    assert nodes[first].size == 0.0
    assert nodes[second].size == pytest.approx(3.0)
    assert nodes[second].facts == (("deviation of the target's own run", "1e-06"),)
    assert nodes[entry.calls[2].site].facts == ()
    assert text_of({"decode": {first: 0.0, second: 1e-6}}) == (
        f"decode begins with 0 and ends with 1e-06, at most 1e-06 at {second}"
    )
