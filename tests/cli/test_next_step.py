"""What a run and a report say comes next, by how the session stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tapml.cli.next_step import next_step
from tapml.verdicts.verdict import Cause

FOLDER = Path("my session")
AGAIN = "continue with `tapml offload --session 'my session'`"


def report(status: str, *, waiting: int = 0, kept: int = 0, **failed: Any) -> dict[str, Any]:
    operators = [{"name": "softmax", "state": "failed", **failed}] if failed else []
    return {
        "outcome": {"status": status},
        "summary": {"waiting": waiting, "kept": kept},
        "operators": operators,
        "final": {"status": status} if status == "pass" and not kept else None,
    }


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (report("pass"), ("`tapml run 'my session' --prompt", "`tapml package 'my session'`")),
        (report("pass", kept=3), ("without --only and --keep-on-source",)),
        (report("incomplete", waiting=3), (AGAIN,)),
        (report("not run"), ("--device-memory", "`tapml devices`")),
        (report("degraded"), ("checks it again",)),
        (
            report("fail", waiting=7, repro="r/softmax", repro_script="repro.py"),
            (
                "`python r/softmax/repro.py` shows the failure again; ",
                "`tapml kernel new 'my session' softmax` begins a kernel by hand",
                "`tapml kernel check 'my session' softmax --watch` tries every save",
                f"{AGAIN} (7 operators wait)",
            ),
        ),
        (report("fail", repro="r", replayable=True), ("`tapml replay r` shows",)),
        (
            report("fail", repro="r", written="k/softmax"),
            ("next: `tapml kernel check 'my session' softmax --watch`",),
        ),
        (
            report("fail", lacks=[{"where": "parameter 'x' of operator 'softmax'",
                                   "limit": "max_buffer_bytes", "need": "4096", "has": "1024",
                                   "device": True}]),
            ("max_buffer_bytes is 1024, parameter 'x' of operator 'softmax' needs 4096",
             "another device (`tapml devices`), or --keep-on-source softmax"),
        ),
    ],
)  # fmt: skip
def test_the_line_fits_how_it_ended(data: dict[str, Any], words: tuple[str, ...]) -> None:
    line = next_step(data, FOLDER)
    assert line.startswith("next: ")
    assert "\n" not in line
    for each in words:
        assert each in line


def test_where_nothing_tests_it_a_larger_budget_is_offered_and_no_kernel() -> None:
    line = next_step(report("fail", cause=Cause.NO_TEST), FOLDER)
    assert "a larger --budget (--restart), or --keep-on-source softmax" in line
    assert "tapml kernel" not in line


def test_where_the_device_is_too_small_no_kernel_is_offered() -> None:
    lack = {"where": "x", "limit": "memory_bytes", "need": "2", "has": "1", "device": True}
    assert "tapml kernel" not in next_step(report("fail", lacks=[lack]), FOLDER)
    assert "tapml kernel new" in next_step(report("fail", lacks=[lack | {"device": False}]), FOLDER)


def test_a_session_on_a_simulator_is_told_how_it_goes_on_with_a_gpu() -> None:
    target = {"platform": "metal", "device_type": "simulated"}
    line = next_step(report("pass") | {"target": target}, Path("s"))
    assert "`tapml rpc serve --device metal` makes it a device" in line
    assert "`tapml offload --session s --device tcp://HOST:PORT` goes on there" in line


def test_options_that_hold_for_a_run_alone_are_told_again() -> None:
    line = next_step(report("incomplete", waiting=1), Path("s"), "--only '*norm*'")
    assert line == "next: continue with `tapml offload --session s --only '*norm*'`"


def test_a_model_tried_on_token_ids_is_run_on_token_ids() -> None:
    data = report("pass")
    data["final"]["prompts"] = [{"prompt": " ".join(map(str, range(100, 120)))}]
    line = next_step(data, Path("s"))
    assert line.startswith('next: `tapml run s --tokens "100 101 102 103 104 105 106 107"` runs it')
    data["final"]["prompts"].append({"prompt": "An identifier 1"})
    assert '`tapml run s --prompt "..."`' in next_step(data, Path("s"))
