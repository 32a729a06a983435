"""Where a run stands, by its events and a clock that the test moves."""

from __future__ import annotations

import pytest

from tapml.runs.events import PhaseEnded, PhaseProgressed, PhaseStarted
from tapml.runs.wording import duration
from tapml.session.events import ModelRuns, OperatorChanged, OperatorsKnown, OperatorState
from tapml.session.run_state import RunState


class Run:
    """A state and the time it goes by."""

    def __init__(self, *names: str) -> None:
        self.now = 100.0
        self.state = RunState(lambda: self.now)
        if names:
            self.state.apply(PhaseStarted("move operators", total=len(names)))
            self.state.apply(OperatorsKnown(names))
        self.count = len(names)
        self.done = 0

    def step(
        self, name: str, state: OperatorState, seconds: float = 0.0, **numbers: object
    ) -> None:
        """An operator comes into a state and stays there so long."""
        self.done += state in {"moved", "kept", "failed"}
        self.state.apply(OperatorChanged(name, state, self.done, self.count, dict(numbers)))
        self.now += seconds

    def move(self, name: str, replaying: float, checking: float) -> None:
        """Move an operator whose verdicts are made."""
        self.step(name, "compiling")
        self.step(name, "replaying", replaying, tests=2)
        self.step(name, "model check", checking)
        self.step(name, "moved", tests=2, worst_ratio=1.0)


def test_time_left_goes_by_what_was_made() -> None:
    run = Run("a", "b", "c", "d")
    assert run.state.seconds_left is None
    run.move("a", 6.0, 2.0)
    run.move("b", 8.0, 4.0)
    assert run.state.seconds_left == 2 * (7.0 + 3.0)


def test_the_journals_verdicts_cost_nothing_and_promise_nothing() -> None:
    run = Run(*(f"known_{number}" for number in range(47)), "a", "b", "c")
    for number in range(47):
        run.step(f"known_{number}", "compiling")
        run.step(f"known_{number}", "moved", 0.001, reused=True, tests=2)
    assert run.state.seconds_left is None, "nothing that was made tells what making takes"
    run.state.apply(ModelRuns(0, run.count))
    run.move("a", 10.0, 1.0)
    assert run.state.seconds_left == pytest.approx(22.0)
    assert (run.state.standing, run.state.fresh) == (47, 1)


def test_a_step_in_hand_is_taken_off_what_is_left() -> None:
    run = Run("a", "b")
    run.move("a", 10.0, 0.0)
    run.step("b", "replaying", 4.0)
    assert run.state.seconds_left == pytest.approx(6.0)
    assert run.state.step_seconds == 4.0
    run.now += 60.0
    assert run.state.seconds_left == 0.0, "never below nothing"


def test_a_step_that_takes_long_uses_up_no_time_of_others() -> None:
    run = Run("a", "b", "c")
    run.move("a", 10.0, 2.0)
    run.step("b", "replaying", 600.0)
    assert run.state.seconds_left == pytest.approx(2.0 + 12.0)


def test_model_checks_that_the_journal_holds_promise_nothing() -> None:
    run = Run("a", "b", "c")
    run.step("a", "compiling")
    run.step("a", "model check", 0.001)
    run.step("a", "moved", reused=True, tests=2)
    run.step("b", "replaying", 30.0, tests=2)
    assert run.state.seconds_left is None


def test_model_runs_that_a_strategy_promises_count_in_place_of_one_each() -> None:
    run = Run("a", "b", "c", "d")
    for name in "abcd":
        run.step(name, "replaying", 1.0, tests=1)
        run.step(name, "validated")
    run.state.apply(ModelRuns(0, 3))
    run.step("a", "model check", 5.0)
    run.state.apply(ModelRuns(1, 3))
    run.step("a", "moved", tests=1)
    assert run.state.seconds_left == 2 * 5.0


def test_a_phase_that_counts_is_extrapolated() -> None:
    run = Run()
    run.state.apply(PhaseStarted("carve tests"))
    run.now += 3.0
    left = [run.state.seconds_left]
    for done in (1, 4):
        run.state.apply(PhaseProgressed("carve tests", done, 4, "9 tests"))
        left.append(run.state.seconds_left)
    assert left == [None, 9.0, None]
    run.state.apply(PhaseEnded("carve tests", 3.0))
    assert run.state.phase == ""


def test_verdicts_made_again_are_counted_with_their_reasons() -> None:
    run = Run("a", "b", "c")
    run.step("a", "moved", tests=1, again=["the kernel"])
    run.step("b", "failed", tests=1, again=["the kernel", "the policy"])
    run.step("c", "moved", tests=1)
    assert (run.state.standing, run.state.again, run.state.fresh) == (0, 2, 1)
    assert dict(run.state.reasons) == {"the kernel": 2, "the policy": 1}


def test_the_worst_error_is_named_and_only_a_number_is_one() -> None:
    run = Run("a", "b", "c")
    run.step("a", "moved", worst_ratio=3.0)
    run.step("b", "failed", worst_ratio=float("inf"))
    run.step("c", "failed", worst_ratio=None)
    assert run.state.worst == (3.0, "a")


def test_operators_that_were_not_named_yet_are_waiting() -> None:
    state = RunState()
    state.apply(PhaseStarted("move operators", total=5))
    state.apply(OperatorChanged("a", "moved", 1, 5))
    assert state.counts == {"moved": 1, "waiting": 4}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (89.4, "89 s"), (100, "2 min"), (7200, "2.0 h")]
)
def test_a_duration_has_the_unit_that_suits_it(seconds: float, text: str) -> None:
    assert duration(seconds) == text
