"""Phases are announced, timed and journaled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tapml.runs.events import Event, PhaseEnded, PhaseProgressed, PhaseStarted
from tapml.runs.journal import Journal
from tapml.runs.kind import RunKind
from tapml.runs.phases import Phases


def test_a_phase_is_announced_timed_and_journaled(tmp_path: Path) -> None:
    seen: list[Event] = []
    with Journal(tmp_path / "journal", RunKind("tapml-cooking/1")) as journal:
        phases = Phases(seen.append, journal)
        with phases.phase("carve", group="overhead", platform="llvm", once=True) as phase:
            phase.progress(1, 3, "tests")
            phase.detail = "3 tests"
        ((_, _, row),) = journal.events("phase")
    started, progressed, ended = seen
    assert started == PhaseStarted("carve")
    assert progressed == PhaseProgressed("carve", 1, 3, "tests")
    assert isinstance(ended, PhaseEnded)
    assert (ended.name, ended.detail) == ("carve", "3 tests")
    assert ended.seconds >= 0
    assert row == {
        "name": "carve", "seconds": ended.seconds, "group": "overhead", "platform": "llvm",
        "once": True, "detail": "3 tests",
    }  # fmt: skip


def test_a_phase_that_raises_leaves_no_row(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal", RunKind("tapml-cooking/1")) as journal:
        phases = Phases(lambda _: None, journal)
        with (
            pytest.raises(RuntimeError, match="stop"),
            phases.phase("carve", group="overhead", platform="llvm", once=True),
        ):
            raise RuntimeError("stop")
        assert list(journal.events("phase")) == []


def test_phases_work_without_a_journal() -> None:
    seen: list[Event] = []
    with Phases(seen.append).phase("import", group="overhead", platform="host", once=True):
        pass
    assert len(seen) == 2
