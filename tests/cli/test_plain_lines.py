"""What a log shows while a session runs."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable, Sequence

import pytest

from tapml.cli.operator_text import operator_line
from tapml.cli.plain_lines import PlainLines
from tapml.cli.progress import watch
from tapml.runs.events import Event, Note, PhaseEnded, PhaseProgressed, PhaseStarted
from tapml.session.events import OperatorChanged
from tests.cli.runs import FAILED, MOVED, RUN


def shown(events: Sequence[Event], *, quiet: bool = False) -> str:
    """What the display wrote."""
    stream = io.StringIO()
    with watch(quiet=quiet, stream=stream) as watcher:
        for event in events:
            watcher(event)
    return stream.getvalue()


def test_a_log_has_one_line_per_finished_thing() -> None:
    lines = [re.sub(r"  \(.* left\)$", "", line) for line in shown(RUN).splitlines()]
    assert lines == [
        "open device: Some GPU (Some Platform) (0.5 s)",
        "load model: tiny, float32 (1.2 s)",
        "note: the device has no float16: the model runs as float32",
        "carve tests: 36 tests (0.5 s)",
        "[2/4] softmax: moved, 12 tests, worst ratio 1.25, 0.5 ms, 2 x the reference's",
        "[3/4] matmul: failed, 3 tests, worst ratio 1e+06, wrong at [0, 1]",
        "[4/4] sort: kept, kept on the source by '*sort*'",
        "move operators: 2 of 4 moved (12.0 s)",
    ]


def test_a_line_that_fails_promises_no_time() -> None:
    numbers = {"tests": 2, "worst_ratio": 1.0}
    lines = shown(
        [
            PhaseStarted("move operators", total=9),
            OperatorChanged("a", "replaying", 0, 9, numbers),
            OperatorChanged("a", "moved", 1, 9, numbers),
            OperatorChanged("b", "replaying", 1, 9, numbers),
            OperatorChanged("b", "failed", 2, 9, numbers | {"reason": "wrong at [0, 1]"}),
        ]
    ).splitlines()
    assert re.search(r"a: moved.* left\)$", lines[0])
    assert lines[1].endswith("wrong at [0, 1]")


def test_a_quiet_run_shows_failures_and_what_stays() -> None:
    text = shown(RUN, quiet=True)
    assert "matmul: failed" in text
    assert "sort: kept" in text
    assert "softmax" not in text
    assert "carve" not in text


def test_many_that_stay_as_asked_are_one_line() -> None:
    names = [f"operator_{number}" for number in range(40)]
    events: Sequence[Event] = [
        PhaseStarted("move operators", total=41),
        *(OperatorChanged(name, "kept", i, 41, {"reason": "?"}) for i, name in enumerate(names)),
        MOVED,
    ]
    first, second = shown(events).splitlines()
    assert first == (
        "40 operators stay on the source as asked: operator_0, operator_1, operator_2 and 37 more"
    )
    assert "softmax: moved" in second


def test_what_is_validated_first_and_moves_later_is_told_once() -> None:
    numbers = {"tests": 2, "worst_ratio": 1.0}
    events: Sequence[Event] = [
        PhaseStarted("move operators", total=3),
        OperatorChanged("a", "validated", 1, 3, numbers),
        OperatorChanged("b", "validated", 2, 3, numbers),
        OperatorChanged("c", "validated", 3, 3, numbers | {"reused": True}),
        OperatorChanged("a", "moved", 3, 3, numbers),
        OperatorChanged("b", "failed", 3, 3, numbers | {"reason": "the whole model parts"}),
        OperatorChanged("c", "moved", 3, 3, numbers),
    ]
    lines = [line.partition("  (")[0] for line in shown(events).splitlines()]
    assert lines == [
        "[1/3] a: validated, 2 tests, worst ratio 1",
        "[2/3] b: validated, 2 tests, worst ratio 1",
        "[3/3] b: failed, 2 tests, worst ratio 1, the whole model parts",
    ]


def test_a_verdict_that_is_made_again_says_why() -> None:
    numbers = {"tests": 2, "worst_ratio": 1.0, "again": ["the kernel", "the driver: 3.1 -> 3.2"]}
    assert operator_line(OperatorChanged("a", "moved", 1, 1, numbers)) == (
        "2 tests, worst ratio 1, made again: the kernel, the driver: 3.1 -> 3.2"
    )


@pytest.mark.parametrize("name", ["[/bold]", "[red]x", "a[0]", "\\[b]", "{x}", "%s", "[link=x]"])
def test_a_name_is_shown_as_it_is(name: str) -> None:
    """Names come out of a model: none of them is an instruction to the display."""
    events: Sequence[Event] = (
        PhaseStarted("move", name, total=2),
        PhaseProgressed("move", 1, 2, name),
        OperatorChanged(name, "compiling", 0, 2, {}),
        OperatorChanged(name, "failed", 1, 2, {"tests": 1, "reason": name}),
        Note(name),
        PhaseEnded("move", 1.0, name),
    )
    assert shown(events).count(name) == 4


@pytest.mark.parametrize("ratio", [float("inf"), float("nan")])
def test_a_ratio_that_is_not_finite_is_said_so(ratio: float) -> None:
    changed = OperatorChanged("a", "failed", 1, 1, {"tests": 1, "worst_ratio": ratio})
    assert "worst ratio not finite" in operator_line(changed)


def test_a_line_says_who_is_suspect_before_the_reason() -> None:
    numbers = {"suspects": ["the reference is suspect, not the target (1 of 1 tests)"]}
    moved = OperatorChanged("softmax", "moved", 1, 1, {"tests": 1, **numbers})
    assert operator_line(moved) == f"1 test, {numbers['suspects'][0]}"
    failed = OperatorChanged("softmax", "failed", 1, 1, {**numbers, "reason": "off"})
    assert operator_line(failed) == f"{numbers['suspects'][0]}, off"


@pytest.mark.parametrize(
    ("events", "line"),
    [
        ((), r"preparing: \d s so far"),
        ((PhaseStarted("load model"),), r"load model: \d s so far"),
        (
            (PhaseStarted("carve tests"), PhaseProgressed("carve tests", 1, 4, "9 tests")),
            r"carve tests: 1 of 4, 9 tests, \d s so far, \d s left",
        ),
        (
            (
                PhaseEnded("open device", 1.0, "Some GPU"),
                PhaseStarted("move operators", total=4),
                OperatorChanged("softmax", "replaying", 1, 4, {"tests": 12}),
            ),
            r"move operators: 1 of 4, softmax: replaying 12 tests on Some GPU for \d s, "
            r"\d s so far",
        ),
    ],
    ids=["before the first phase", "a phase", "a phase that counts", "an operator"],
)
def test_a_log_that_would_be_silent_says_what_is_under_way(
    events: Sequence[Event], line: str
) -> None:
    stream = io.StringIO()
    with PlainLines(stream, silence=0.1) as watcher:
        for event in events:
            watcher(event)
        # On a busy machine a sign of life may come between two events as well.
        ended = sum(isinstance(each, PhaseEnded) for each in events)
        _wait_for(stream, lambda written: re.fullmatch(line, "".join(written[ended:][-1:])))


def test_signs_of_life_become_rarer_and_start_over_after_a_line() -> None:
    stream = io.StringIO()
    started = time.monotonic()
    with PlainLines(stream, silence=0.1) as watcher:
        watcher(PhaseStarted("load model"))
        # After 0.1, 0.1 + 0.2 and 0.1 + 0.2 + 0.4 seconds, and not before.
        _wait_for(stream, lambda written: len(written) >= 3)
        assert time.monotonic() - started > 0.69
        assert watcher._wait > 0.7
        # Held, so that no time passes between the line and the look.
        with watcher._lock:
            before = len(stream.getvalue().splitlines())
            watcher._tell(Note("found"))
            assert watcher._wait == 0.1
        lines = _wait_for(stream, lambda written: len(written) >= before + 2)
    begun = [line.partition(":")[0] for line in lines[: before + 1]]
    assert begun == [*["load model"] * before, "note"]


def test_a_quiet_log_is_silent() -> None:
    stream = io.StringIO()
    with PlainLines(stream, only_failures=True, silence=0.02) as watcher:
        watcher(PhaseStarted("load model"))
        time.sleep(0.2)
    assert stream.getvalue() == ""


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with watch(stream=stream) as watcher:
        watcher(FAILED)
    assert stream.getvalue() == f"[3/4] matmul: failed, {operator_line(FAILED)}\n"


def _wait_for(
    stream: io.StringIO, wanted: Callable[[list[str]], object], seconds: float = 60.0
) -> list[str]:
    """The lines that have come, once they are as wanted."""
    deadline = time.monotonic() + seconds
    while not wanted(lines := stream.getvalue().splitlines()):
        assert time.monotonic() < deadline, lines
        time.sleep(0.01)
    return lines
