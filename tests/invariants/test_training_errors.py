"""Errors of the paper, each with a clean twin; scripts/training_errors re-creates them."""

from __future__ import annotations

import pytest

from scripts.training_errors import one_process
from scripts.training_errors.case import CASES
from scripts.training_errors.running import study

SINGLE = [name for name, case in CASES.items() if case.ranks == 1]


def test_the_cases_are_there() -> None:
    assert one_process.STEPS > 1
    assert len(SINGLE) >= 15


@pytest.mark.parametrize("name", SINGLE)
def test_an_error_is_found_in_its_step_and_its_twin_is_silent(name: str) -> None:
    case = CASES[name]
    _, clean, wrong = study(case)
    assert clean.violated == 0, clean.to_json()["causes"]
    relations = {each.invariant.relation for cause in wrong.causes for each in cause.findings}
    assert case.relation in relations
    assert min(cause.first_step for cause in wrong.causes) <= case.trigger + 1
