"""A watch says what came of every save, goes on whatever the kernel does, and ends cleanly."""

from __future__ import annotations

import io
import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tapml.kernels.screen import headline, times_line, watching
from tapml.kernels.session_facts import read_facts
from tapml.kernels.trial import KernelTrial
from tapml.kernels.trial_result import Times, TrialResult
from tapml.kernels.watching import Looking, Seen, Watch, WatchEvent
from tests.kernels.sessions import OPERATOR, KernelSession
from tests.offload.commands import started
from tests.offload.processes import MARK, left_after, new_mark

BODY = ") {\n"
PATIENCE = 120.0
"""Seconds that a loaded machine may take for what takes a quiet one less than one."""


@pytest.fixture(scope="module")
def trial(kernel_session: KernelSession) -> Iterator[KernelTrial]:
    """A trial for watching: not patient."""
    facts = read_facts(kernel_session.folder)
    with KernelTrial(facts, OPERATOR, deadline_seconds=4, patient=False) as opened:
        yield opened


class Developer:
    """Saves the next text as soon as the verdict on the last one stands, then goes home."""

    def __init__(self, path: Path, texts: list[str]) -> None:
        self.seen: list[Seen] = []
        self._path = path
        self._texts = texts
        self._answered = True

    def __call__(self, event: WatchEvent) -> None:
        if not isinstance(event, Seen):
            return
        if event.waited is None and self.seen:
            return
        self.seen.append(event)
        if not self._texts:
            raise KeyboardInterrupt
        self._path.write_text(self._texts.pop(0))

    @property
    def outcomes(self) -> list[str]:
        """What each save came to."""
        return [seen.result.outcome for seen in self.seen]


def watch(
    trial: KernelTrial, tell: Callable[[WatchEvent], None], budget_seconds: float = PATIENCE
) -> None:
    """Watch until `tell` ends it."""
    with pytest.raises(KeyboardInterrupt):
        Watch(trial, 2, tell, budget_seconds=budget_seconds).run()


@pytest.fixture
def right(kernel_session: KernelSession) -> Iterator[str]:
    """The right source, which is put back."""
    text = kernel_session.source.read_text()
    yield text
    kernel_session.source.write_text(text)


def test_every_save_gets_its_verdict(
    kernel_session: KernelSession, trial: KernelTrial, right: str
) -> None:
    developer = Developer(
        kernel_session.source,
        [
            right.replace("/ sqrt(", "* 1.01f / sqrt("),
            right.replace(BODY, f"{BODY}  flot x;\n"),
            right.replace(BODY, f"{BODY}  // a remark\n"),
        ],
    )
    watch(trial, developer)
    assert developer.outcomes == ["pass", "fail", "does not build", "pass"]
    waits = [seen.waited for seen in developer.seen[1:]]
    assert all(wait is not None and 0 < wait < PATIENCE for wait in waits)
    assert [seen.number for seen in developer.seen] == sorted(s.number for s in developer.seen)


def test_a_manifest_is_watched_as_well(kernel_session: KernelSession, trial: KernelTrial) -> None:
    manifest = kernel_session.manifest.read_text()
    developer = Developer(
        kernel_session.manifest, [manifest.replace("block =", "blokc ="), manifest]
    )
    watch(trial, developer)
    assert developer.outcomes == ["pass", "does not fit", "pass"]


def test_a_hang_costs_a_server_and_the_watch_goes_on(
    kernel_session: KernelSession, trial: KernelTrial, right: str
) -> None:
    loop = "  while (get_local_size(0)) ((volatile __global float*)output_0_ptr)[0] += 1;\n"
    developer = Developer(kernel_session.source, [right.replace(BODY, BODY + loop), right])
    watch(trial, developer)
    assert developer.outcomes == ["pass", "device lost", "pass"]
    assert "the kernel did not end within 4 s in test " in developer.seen[1].result.reason


def test_a_save_during_a_look_begins_it_again(
    kernel_session: KernelSession, trial: KernelTrial, right: str
) -> None:
    events: list[WatchEvent] = []

    def save_while_replaying(event: WatchEvent) -> None:
        events.append(event)
        looks = [e for e in events if isinstance(e, Looking) and e.doing == "building"]
        replaying = isinstance(event, Looking) and event.doing == "replaying"
        if replaying and len(looks) == 1:
            kernel_session.source.write_text(right.replace(BODY, f"{BODY}  return;\n"))
        if isinstance(event, Seen):
            raise KeyboardInterrupt

    watch(trial, save_while_replaying)
    (seen,) = [event for event in events if isinstance(event, Seen)]
    # The first text was right and got no verdict.
    assert (seen.result.outcome, seen.number) == ("fail", 2)


def test_the_tests_left_out_follow_and_the_times_fill_in(trial: KernelTrial) -> None:
    seen: list[Seen] = []

    def until_complete(event: WatchEvent) -> None:
        if isinstance(event, Seen):
            seen.append(event)
            times = event.result.times
            if event.result.tests == event.result.of and times.compiled and times.reference:
                raise KeyboardInterrupt

    watch(trial, until_complete)
    assert seen[0].result.tests == 2
    assert seen[-1].result.passed == len(trial.tests)
    assert all(event.result.outcome == "pass" for event in seen)


def test_the_command_watches_and_ctrl_c_ends_it_cleanly(
    kernel_session: KernelSession, right: str
) -> None:
    mark = new_mark()
    arguments = ("kernel", "check", kernel_session.folder, OPERATOR, "--watch", "--json")
    with started(*arguments, cache=kernel_session.cache, **{MARK: mark}) as process:
        assert json.loads(process.stdout.readline())["outcome"] == "pass"
        kernel_session.source.write_text(right.replace(BODY, f"{BODY}  flot x;\n"))
        deadline = time.monotonic() + PATIENCE
        data: dict[str, Any] = {"outcome": "pass"}
        while data["outcome"] == "pass" and time.monotonic() < deadline:
            data = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert data["outcome"] == "does not build"
    assert f"{kernel_session.source}:" in data["reason"]
    assert isinstance(data["seconds_since_save"], float)
    assert (process.returncode, errors) == (130, "")
    assert not left_after(mark)


def test_a_look_that_takes_long_stands_on_its_first_test_and_is_completed(
    trial: KernelTrial,
) -> None:
    counts: list[int] = []

    def until_complete(event: WatchEvent) -> None:
        if isinstance(event, Seen):
            counts.append(event.result.tests)
            if event.result.tests == event.result.of:
                raise KeyboardInterrupt

    watch(trial, until_complete, budget_seconds=0)
    assert counts[0] == 1
    assert counts[-1] == len(trial.tests) > 1


RESULT = TrialResult(
    "f",
    "fail",
    "test a@p0.s0: worst error",
    381.2,
    3,
    4,
    1,
    90,
    5,
    Times(0.25, 0.2, 0.5),
    hasty=True,
)


def test_a_verdict_is_a_line_and_times_are_compared() -> None:
    assert headline(RESULT) == (
        "fail  3 pass of 4 of 90 tests  1 exact probe  worst ratio 381  a closer look is under way"
    )
    assert times_line(RESULT.times) == (
        "one call takes 0.25 ms, compiled 0.2 ms (1.25 times), reference 0.5 ms (0.50 times)"
    )
    assert times_line(Times()) == ""


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO(), _Terminal()])
def test_verdicts_are_shown_in_a_terminal_and_elsewhere(
    trial: KernelTrial, stream: io.StringIO
) -> None:
    with watching(trial, as_json=False, stream=stream) as tell:
        tell(Looking("building", 0, 4))
        tell(Seen(RESULT, 0.25, 1))
        tell(Looking("replaying", 2, 4))
        tell(Seen(RESULT, 0.5, 2))
    shown = stream.getvalue()
    assert "worst error" in shown
    assert "0.25 s after the save" in shown
    assert "0.50 s after the save" in shown
    assert OPERATOR in shown


def test_the_panel_leaves_room_for_the_echo_of_ctrl_c(
    trial: KernelTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = _Terminal()
    with watching(trial, as_json=False, stream=stream) as tell:
        tell(Seen(RESULT, 0.25, 1))
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert max(map(len, re.split(r"[\r\n]+", plain))) <= 60 - len("^C") - 1
