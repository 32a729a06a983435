"""What a session's folder must be after a kill: whole, and nothing done twice."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tapml.plan import format as plan_format
from tapml.session.kept_model import KEPT, open_kept
from tapml.suite.suite import Suite
from tapml_targets import library_format
from tests.offload.processes import half_written
from tests.offload.sessions import FinishedSession, assert_same_verdicts


def assert_whole(session: Path) -> None:
    """Whatever has its name in the folder is whole, a moment after a kill."""
    for path in session.rglob("*"):
        if any(part.startswith(".") for part in path.relative_to(session).parts):
            continue
        if path.suffix == ".sqlite":
            connection = sqlite3.connect(path)
            try:
                assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",), path
            finally:
                connection.close()
        elif path.suffix == ".json" and path.parent.name != KEPT:
            json.loads(path.read_text(encoding="utf-8"))
        elif path.suffix == ".html":
            assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")
        elif path.name == "plan.msgpack":
            plan_format.unpack(path.read_bytes())
        elif path.name == "library.msgpack":
            library_format.unpack(path.read_bytes())
    if (session / KEPT).exists():
        assert open_kept(session, pytest.fail) is not None
    if (session / "suite").exists():
        with Suite.open(session / "suite") as suite:
            assert suite.complete
            suite.verify()


def assert_no_step_twice(session: Path) -> None:
    """What was journaled was not done again."""
    connection = sqlite3.connect(session / "journal.sqlite")
    try:
        twice = connection.execute(
            "SELECT stage, subject, count(*) FROM result GROUP BY key HAVING count(*) > 1"
        ).fetchall()
    finally:
        connection.close()
    assert twice == []


def assert_unharmed(session: Path, finished: FinishedSession) -> None:
    """A session that came to its end after all is as one that nobody disturbed."""
    assert_same_verdicts(session, finished)
    assert_no_step_twice(session)
    assert_whole(session)
    assert half_written(session) == []
