"""The cases of `tapml devices --test` hold on every device of this machine."""

from __future__ import annotations

import pytest

from tapml_targets.conformance.bench import Bench
from tapml_targets.conformance.running import CASES, CaseResult, conformance, run_cases
from tapml_targets.driver import DeviceDescription, Driver
from tapml_targets.platforms import load_driver_module

# What a platform without windows and grids does not offer; anything else runs.
NOT_OFFERED = {"misaligned windows", "guard bands", "grids above 65535"}


@pytest.mark.parametrize("case", CASES)
def test_it_holds(driver: Driver, case: str) -> None:
    bench = Bench(driver, load_driver_module(driver.description.platform).open_device)
    (result,) = run_cases(bench, [case])
    not_offered = case in NOT_OFFERED and not bench.has_pointers
    assert (result.status, result.reason != "") == (
        ("not run", True) if not_offered else ("pass", False)
    ), result.reason


@pytest.mark.platforms("cpu")
def test_they_run_in_a_process_of_their_own(device: DeviceDescription) -> None:
    assert {result.case: result.status for result in conformance(device)} == {
        case: "not run" if case in NOT_OFFERED else "pass" for case in CASES
    }


@pytest.mark.platforms("cpu")
def test_a_driver_without_an_answer_fails_each_case_with_the_reason(
    device: DeviceDescription,
) -> None:
    results = conformance(device, seconds=0.01)
    assert len(results) == len(CASES)
    for result in results:
        assert isinstance(result, CaseResult)
        assert result.status == "fail" and "no answer within 0.01 s" in result.reason
