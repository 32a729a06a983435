"""The whole model on the target alone is run once, and again where what it rests on changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.offload.commands import run_here
from tests.offload.sessions import FinishedSession, read_report


def test_what_passed_is_not_run_again(finished: FinishedSession, tmp_path: Path) -> None:
    session = finished.copy(tmp_path / "session")
    ended = run_here("offload", "--session", session, cache=finished.cache)
    assert ended.exit_code == 0, ended.errors
    assert "the complete model on the target: reused from the journal" in ended.errors
    assert "end-to-end validation" not in ended.errors
    again, first = read_report(session), finished.report
    assert again["final"] == first["final"] | {
        **{name: again["final"][name] for name in ("library_hash", "plan_hash", "device_bytes")},
        "reused": True,
    }
    assert again["outcome"] == first["outcome"]


@pytest.mark.parametrize("file", ["library.msgpack", "plan.msgpack"])
def test_what_is_not_in_the_folder_any_more_is_made_again(
    finished: FinishedSession, tmp_path: Path, file: str
) -> None:
    session = finished.copy(tmp_path / "session")
    kept = session / "finished" / file
    before = kept.read_bytes()
    kept.unlink()
    ended = run_here("offload", "--session", session, cache=finished.cache)
    assert ended.exit_code == 0, ended.errors
    assert "end-to-end validation" in ended.errors
    assert kept.read_bytes() == before


def test_a_device_with_less_room_takes_the_pass_back(
    finished: FinishedSession, tmp_path: Path
) -> None:
    session = finished.copy(tmp_path / "session")
    ended = run_here(
        "offload", "--session", session, "--device-memory", "210k", cache=finished.cache
    )
    assert ended.exit_code == 1
    assert read_report(session)["outcome"]["status"] == "not run"
    assert not (session / "finished" / "library.msgpack").exists()
