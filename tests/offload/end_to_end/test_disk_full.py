"""A disk that fills, in every phase of a session: said in one line, and with room it goes on.

A real small file system is in tests/cli/test_bad_input.py; here it fills at a chosen write.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.offload.forked import run_forked
from tests.offload.processes import half_written
from tests.offload.sessions import FinishedSession, assert_same_verdicts
from tests.offload.wholeness import assert_no_step_twice, assert_whole

pytestmark = pytest.mark.run_first(first=True)

# In the order in which a session comes to them; nothing can be written from there on.
SITES = {
    "taking the session": "write */session/lock",
    "the journal's tables": "commit */session/journal.sqlite",
    "an event": "commit */session/journal.sqlite#4",
    "the suite's index": "commit */suite.partial/index.sqlite",
    "the suite's tensors": "write */suite.partial/packs/*.pack#3",
    "the suite's name": "rename */session/suite",
    "what is kept of the model": "fsync */session/.model.partial/*",
    "a verdict": "commit */session/journal.sqlite#25",
    "the finished plan": "write */finished/plan.msgpack",
    "the finished kernels": "rename */finished/library.msgpack",
    "the report": "fsync */session/report.json",
}


def test_a_disk_that_fills_in_any_phase_ends_in_one_line_and_with_room_it_goes_on(
    finished: FinishedSession, tmp_path: Path
) -> None:
    session, errors = tmp_path / "session", tmp_path / "errors"
    arguments = (*finished.arguments(session), "--quiet")
    for phase, site in SITES.items():
        fault = f"full@before {site}"
        ended = run_forked(*arguments, cache=finished.cache, errors=errors, fault=fault)
        assert ended.exit_code == 2, (phase, ended)
        assert "Traceback" not in ended.errors, (phase, ended)
        (line,) = ended.error_lines
        assert "No space left" in line or "full" in line, phase
        assert "free some space" in line, phase
        assert not session.exists() or half_written(session) == [], phase
        assert_whole(session)
    ended = run_forked(*arguments, cache=finished.cache, errors=errors)
    assert ended.exit_code == 0, ended.errors
    assert_same_verdicts(session, finished)
    assert_no_step_twice(session)
    assert_whole(session)


def test_expectations_that_cannot_be_kept_end_no_session(
    finished: FinishedSession, tmp_path: Path
) -> None:
    """They are a cache: what is not kept is computed again."""
    session, errors = tmp_path / "session", tmp_path / "errors"
    fault = "full@before commit */session/oracle.sqlite"
    ended = run_forked(
        *finished.arguments(session), cache=finished.cache, errors=errors, fault=fault
    )
    assert ended.exit_code in {0, 2}
    assert "Traceback" not in ended.errors
    ended = run_forked(*finished.arguments(session), cache=finished.cache, errors=errors)
    assert ended.exit_code == 0, ended.errors
    assert_same_verdicts(session, finished)
