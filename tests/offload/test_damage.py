"""Files of a session that something else has damaged: made again, or named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.offload.commands import run_here
from tests.offload.sessions import FinishedSession, states

pytestmark = pytest.mark.slow


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def turn_bits(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:100] + bytes(255 - byte for byte in content[100:]))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("finished/library.msgpack", truncate),
        ("suite/index.sqlite", turn_bits),
        ("report.json", Path.unlink),
        ("oracle.sqlite", Path.unlink),
    ],
    ids=["finished plan", "suite", "report", "expectations"],
)
def test_what_can_be_made_again_is(
    finished: FinishedSession, tmp_path: Path, name: str, damage: object
) -> None:
    session = finished.copy(tmp_path / "session")
    assert callable(damage)
    damage(session / name)
    ended = run_here("offload", "--session", session, cache=finished.cache)
    assert ended.exit_code == 0, ended.errors
    assert set(states(session).values()) == {"moved"}
    assert (session / name).is_file()
    ended = run_here("run", session, "--tokens", "1 2", "--max-new-tokens", "1",
                     cache=finished.cache)  # fmt: skip
    assert ended.exit_code == 0, ended.errors


@pytest.mark.parametrize(
    ("name", "words"),
    [("journal.sqlite", "begin anew in another folder"), ("oracle.sqlite", "delete it")],
    ids=["journal", "expectations"],
)
def test_what_cannot_is_named(
    finished: FinishedSession, tmp_path: Path, name: str, words: str
) -> None:
    session = finished.copy(tmp_path / "session")
    turn_bits(session / name)
    ended = run_here("offload", "--session", session, "--quiet", cache=finished.cache)
    assert ended.exit_code == 2
    (line,) = ended.error_lines
    assert str(session / name) in line
    assert words in line
