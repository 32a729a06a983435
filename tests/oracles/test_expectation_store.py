"""Where a suite's expectations are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tapml.oracles.expectation_store import STORE_NAME, store_of


def test_a_suite_on_its_own_keeps_them_inside(tmp_path: Path) -> None:
    suite = tmp_path / "suite"
    suite.mkdir()
    assert store_of(suite) == suite / STORE_NAME


def test_a_session_s_suite_shares_the_session_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = tmp_path / "session" / "suite"
    suite.mkdir(parents=True)
    (suite.parent / STORE_NAME).touch()
    assert store_of(suite) == suite.parent / STORE_NAME
    monkeypatch.chdir(suite)
    assert store_of(Path()) == suite.parent / STORE_NAME


def test_a_folder_that_cannot_be_written_keeps_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may write anywhere but on read-only media, so the answer is given here.
    monkeypatch.setattr("tapml.oracles.expectation_store.os.access", lambda *_: False)
    assert store_of(tmp_path) is None
