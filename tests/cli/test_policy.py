"""``tapml policy`` and ``--policy``: other limits, each with its reason."""

from __future__ import annotations

from pathlib import Path

from tests.offload.commands import run_here
from tests.offload.sessions import FinishedSession, read_report

REASON = "the softmax of this device is known to be off by more"


def test_the_defaults_are_printed_as_a_file_that_is_a_policy(tmp_path: Path) -> None:
    printed = run_here("policy", cache=tmp_path)
    assert printed.exit_code == 0
    file = tmp_path / "limits.toml"
    file.write_text(printed.output, encoding="utf-8")
    checked = run_here("policy", file, cache=tmp_path)
    assert checked.exit_code == 0
    assert checked.output.endswith("it loosens nothing\n")


def test_an_override_without_a_reason_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text('[[override]]\noperator = "softmax*"\npassing = 64.0\ndegraded = 128.0\n')
    checked = run_here("policy", file, cache=tmp_path)
    assert checked.exit_code == 2
    assert "has no reason" in checked.errors
    assert "line 2" in checked.errors


def test_a_session_keeps_its_policy_and_shows_what_is_loosened(
    finished: FinishedSession, tmp_path: Path
) -> None:
    session = finished.copy(tmp_path / "session")
    file = tmp_path / "limits.toml"
    file.write_text(
        '[[override]]\noperator = "softmax*"\npassing = 64.0\ndegraded = 128.0\n'
        f'reason = "{REASON}"\n'
    )
    arguments = finished.arguments(session)
    ended = run_here(*arguments, "--policy", file, cache=finished.cache)
    assert ended.exit_code == 0, ended.errors
    first = read_report(session)
    assert first["loosened"] == [f"softmax*: {REASON}"]
    assert REASON in (session / "report.html").read_text(encoding="utf-8")
    # The limits are part of the keys of what they can apply to.
    for each in first["operators"]:
        assert bool(each["replay"].get("reused")) != each["name"].startswith("softmax")
    assert run_here(*arguments, cache=finished.cache).exit_code == 0
    again = read_report(session)
    assert again["loosened"] == first["loosened"]
    assert all(each["replay"].get("reused") for each in again["operators"])
