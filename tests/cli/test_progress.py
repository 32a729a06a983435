"""What a person sees while a session runs."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Sequence

import pytest

from tapml.cli.progress import operator_line, remaining, watch
from tapml.offload.events import (
    Event,
    Note,
    OperatorChanged,
    PhaseEnded,
    PhaseProgressed,
    PhaseStarted,
)

MOVED = OperatorChanged("softmax", "moved", 2, 4, {"tests": 12, "worst_ratio": 1.25})
FAILED = OperatorChanged(
    "matmul", "failed", 3, 4, {"tests": 3, "worst_ratio": 1e6, "reason": "wrong at [0, 1]\nmore"}
)
KEPT = OperatorChanged("sort", "kept", 4, 4, {"reason": "kept on the source by '*sort*'"})
RUN: Sequence[Event] = (
    PhaseStarted("load model"),
    PhaseEnded("load model", 1.25, "tiny, float32"),
    Note("the device has no float16: the model runs as float32"),
    PhaseStarted("carve tests"),
    PhaseProgressed("carve tests", 1, 4, "9 tests"),
    PhaseEnded("carve tests", 0.5, "36 tests"),
    PhaseStarted("move operators", total=4),
    OperatorChanged("cos", "moved", 1, 4, {"tests": 1, "worst_ratio": 0.0, "reused": True}),
    OperatorChanged("softmax", "compiling", 1, 4, {}),
    OperatorChanged("softmax", "replaying", 1, 4, {"tests": 12}),
    MOVED,
    FAILED,
    KEPT,
    PhaseEnded("move operators", 12.0, "2 of 4 on the target"),
)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def shown(events: Sequence[Event], *, quiet: bool = False, terminal: bool = False) -> str:
    """What the display wrote, without the codes that move the cursor or colour."""
    stream = Terminal() if terminal else io.StringIO()
    with watch(quiet=quiet, stream=stream) as watcher:
        for event in events:
            watcher(event)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())


def test_a_log_has_one_line_per_finished_thing() -> None:
    lines = [re.sub(r"  \(.* left\)$", "", line) for line in shown(RUN).splitlines()]
    assert lines == [
        "load model: tiny, float32 (1.2 s)",
        "note: the device has no float16: the model runs as float32",
        "carve tests: 36 tests (0.5 s)",
        "[1/4] cos: moved, 1 tests, worst ratio 0, from the journal",
        "[2/4] softmax: moved, 12 tests, worst ratio 1.25",
        "[3/4] matmul: failed, 3 tests, worst ratio 1e+06, wrong at [0, 1]",
        "[4/4] sort: kept, kept on the source by '*sort*'",
        "move operators: 2 of 4 on the target (12.0 s)",
    ]


def test_a_quiet_run_shows_failures_and_what_stays() -> None:
    text = shown(RUN, quiet=True)
    assert "matmul: failed" in text
    assert "sort: kept" in text
    assert "softmax" not in text
    assert "carve" not in text


def test_a_terminal_shows_what_is_done_what_runs_and_the_worst_error() -> None:
    text = shown(RUN[:-1], terminal=True)
    assert "✓ softmax 12 tests, worst ratio 1.25" in text
    assert "✗ matmul" in text
    assert "· sort" in text
    assert "note: the device has no float16" in text
    assert "worst 1e+06 in matmul" in text


def test_a_terminal_shows_time_left() -> None:
    started = (
        PhaseStarted("move operators", total=4),
        MOVED,
        OperatorChanged("matmul", "replaying", 2, 4, {"tests": 3}),
    )
    text = shown(started, terminal=True)
    assert "2/4" in text
    assert "matmul: replaying" in text
    assert "0 s left" in text


@pytest.mark.parametrize("terminal", [False, True], ids=["log", "terminal"])
@pytest.mark.parametrize("name", ["[/bold]", "[red]x", "a[0]", "\\[b]", "{x}", "%s", "[link=x]"])
def test_a_name_is_shown_as_it_is(name: str, terminal: bool) -> None:
    """Names come out of a model: none of them is an instruction to the display."""
    events: Sequence[Event] = (
        PhaseStarted("move", name, total=2),
        PhaseProgressed("move", 1, 2, name),
        OperatorChanged(name, "compiling", 0, 2, {}),
        OperatorChanged(name, "failed", 1, 2, {"tests": 1, "reason": name}),
        Note(name),
        PhaseEnded("move", 1.0, name),
    )
    text = shown(events, terminal=terminal)
    assert text.count(name) >= 4


@pytest.mark.parametrize(
    ("elapsed", "done", "total", "text"),
    [
        (10.0, 0, 10, ""),
        (10.0, 5, 10, "10 s left"),
        (30.0, 1, 11, "5 min left"),
        (10.0, 10, 10, ""),
        (10.0, 3, 0, ""),
    ],
)
def test_time_left_goes_by_the_mean_of_what_is_done(
    elapsed: float, done: int, total: int, text: str
) -> None:
    assert remaining(time.monotonic() - elapsed, done, total) == text


@pytest.mark.parametrize("ratio", [float("inf"), float("nan")])
def test_a_ratio_that_is_not_finite_is_said_so(ratio: float) -> None:
    changed = OperatorChanged("a", "failed", 1, 1, {"tests": 1, "worst_ratio": ratio})
    assert "worst ratio not finite" in operator_line(changed)


def test_a_line_says_who_is_suspect_before_the_reason() -> None:
    numbers = {"suspects": ["the reference is suspect, not the target (1 of 1 tests)"]}
    moved = OperatorChanged("softmax", "moved", 1, 1, {"tests": 1, **numbers})
    assert operator_line(moved) == f"1 tests, {numbers['suspects'][0]}"
    failed = OperatorChanged("softmax", "failed", 1, 1, {**numbers, "reason": "off"})
    assert operator_line(failed) == f"{numbers['suspects'][0]}, off"
