"""``tapml report``: how a session stands in a few lines."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tapml.runs.events import PhaseStarted, ignore
from tapml.runs.live_file import LiveFile
from tapml.runs.lock import LOCK, RunLock
from tapml.session.events import OperatorChanged
from tapml.session.model_times import multiple
from tapml.session.run_state import RunState
from tests.offload.commands import Ended, run_here
from tests.offload.sessions import FinishedSession, read_report


@pytest.fixture
def session(finished: FinishedSession, tmp_path: Path) -> Path:
    """The report of a finished session, and nothing else of it."""
    folder = tmp_path / "session"
    folder.mkdir()
    for name in ("report.json", "report.html"):
        shutil.copy(finished.folder / name, folder)
    return folder


def report(session: Path, *more: str) -> Ended:
    return run_here("report", session, *more, cache=session.parent)


def change(session: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change what the report says."""
    data = read_report(session)
    edit(data)
    (session / "report.json").write_text(json.dumps(data), encoding="utf-8")


def test_a_finished_session_is_summed_up_with_what_to_do_next(session: Path) -> None:
    ended = report(session)
    data, lines = read_report(session), ended.output.splitlines()
    count, tests = data["summary"]["operators"], data["summary"]["tests"]
    assert ended.exit_code == 0
    assert lines[0] == f"pass: {data['outcome']['text']}"
    assert lines[1].startswith(f"operators: {count} moved; {tests} of {tests} tests pass")
    assert lines[2].startswith("worst error ratio: ")
    assert lines[-2].startswith(f'next: `tapml run {session} --tokens "1 2 3 4"`')
    assert lines[-1] == f"report: {session / 'report.html'}"


def test_it_says_what_a_run_takes_on_both_sides(session: Path) -> None:
    (line,) = (line for line in report(session).output.splitlines() if line.startswith("kernels:"))
    for entry, times in read_report(session)["times"]["entries"].items():
        assert f"{entry} {times['target_ms']:.3g} ms on the target" in line
        reference = f"{times['reference_ms']:.3g} ms on the reference"
        assert f"{reference} ({multiple(times['ratio'])} x)" in line


def test_it_names_what_is_slow_out_of_line(session: Path) -> None:
    def slow_down(data: dict[str, Any]) -> None:
        for index, each in enumerate(data["operators"]):
            target = 70.0 if index == 0 else 1.0
            entry = {"calls": 1, "tests": 1, "target_ms": target, "reference_ms": 1.0}
            each["times"] |= {"entries": {"decode": entry}}

    change(session, slow_down)
    data = read_report(session)
    name, count = data["operators"][0]["name"], len(data["operators"])
    share = 70 / (70 + count - 1)
    line = f"slowest against the reference: {name} 70 x ({share * 100:.0f} % of decode)\n"
    assert line in report(session).output


def test_failures_come_with_their_reason_and_the_command_that_shows_them(session: Path) -> None:
    def fail(data: dict[str, Any]) -> None:
        data["operators"][0] |= {
            "state": "failed",
            "reason": "3 elements are off\nand more",
            "repro": "/repros/a",
            "replayable": True,
        }
        data["outcome"] = {"status": "fail", "text": "1 operator failed"}

    change(session, fail)
    ended, name = report(session), read_report(session)["operators"][0]["name"]
    assert ended.exit_code == 0, "the report was printed; what it says is not this command's end"
    assert f"failed: {name}: 3 elements are off\n  repro: /repros/a\n" in ended.output
    assert "next: `tapml replay /repros/a` shows the failure again" in ended.output
    assert f"continue with `tapml offload --session {session}`" in ended.output


@pytest.mark.parametrize(("written", "command"), [("", "new"), ("/kernels/a", "check")])
def test_a_failure_says_how_its_kernel_is_mended(session: Path, written: str, command: str) -> None:
    def fail(data: dict[str, Any]) -> None:
        data["operators"][0] |= {"state": "failed", "reason": "off", "written": written}
        data["outcome"] = {"status": "fail", "text": "1 operator failed"}

    change(session, fail)
    name = read_report(session)["operators"][0]["name"]
    assert f"`tapml kernel {command} {session} {name}" in report(session).output


def test_operators_kept_on_request_are_offered_to_be_moved(session: Path) -> None:
    def keep(data: dict[str, Any]) -> None:
        data["summary"] |= {"moved": data["summary"]["moved"] - 1, "kept": 1}
        data["final"] = None

    change(session, keep)
    assert "without --only and --keep-on-source moves the others" in report(session).output


def test_a_session_without_a_report_yet_is_no_stranger(session: Path) -> None:
    (session / "report.json").unlink()
    (session / "journal.sqlite").touch()
    ended = report(session)
    assert ended.exit_code == 2
    assert "has no report yet" in ended.errors
    assert f"continue with `tapml offload --session {session}`" in ended.errors


def test_a_session_that_runs_is_said_to(session: Path) -> None:
    with RunLock(session / LOCK).hold(), LiveFile(session, RunState(), ignore) as live:
        live(PhaseStarted("move operators", total=9))
        live(OperatorChanged("softmax", "replaying", 4, 9, {"tests": 2}))
        while '"softmax"' not in (session / "live.json").read_text(encoding="utf-8"):
            pass
        first = report(session).output.splitlines()[0]
    assert first.startswith("running in process ")
    assert "move operators, 4 of 9" in first
    assert not report(session).output.startswith("running")


def test_a_run_that_was_cut_off_is_said_to(session: Path) -> None:
    with LiveFile(session, RunState(), ignore) as live:
        live(PhaseStarted("move operators", total=9))
        live(OperatorChanged("softmax", "replaying", 4, 9, {"tests": 2}))
        while '"softmax"' not in (session / "live.json").read_text(encoding="utf-8"):
            pass
        # Nobody holds the session: whoever wrote this is gone.
        first = report(session).output.splitlines()[0]
    assert first.startswith("the last run was killed (process ")
    assert "move operators, 4 of 9)" in first
    assert report(session).output.startswith("pass")


def test_the_data_is_printed_as_it_is(session: Path) -> None:
    assert json.loads(report(session, "--json").output) == read_report(session)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"summary": 1}', '{"outcome": {}}'])
def test_a_damaged_report_is_said_so(session: Path, text: str) -> None:
    (session / "report.json").write_text(text, encoding="utf-8")
    ended = report(session)
    assert ended.exit_code == 2
    assert "run the session again" in ended.errors
    assert "Traceback" not in ended.errors


def test_a_folder_without_a_report_says_how_to_get_one(tmp_path: Path) -> None:
    ended = report(tmp_path)
    assert ended.exit_code == 2
    assert "tapml offload --session FOLDER" in ended.errors


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--port", "1"), "--port goes with --serve"),
        (("--host", "x"), "--host goes with --serve"),
        (("--serve", "--json"), "choose one"),
        (("--serve", "--port", "65536"), "expected 0 to 65535"),
        (("--serve", "--port", "-1"), "expected"),
        (("--serve", "--host", "256.1.1.1"), "cannot listen on 256.1.1.1"),
    ],
)
def test_what_makes_no_sense_is_refused(session: Path, more: tuple[str, ...], words: str) -> None:
    (session / "journal.sqlite").touch()
    ended = report(session, *more)
    assert ended.exit_code == 2
    assert words in ended.errors


def test_a_folder_with_other_files_is_not_served(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    ended = report(tmp_path, "--serve")
    assert ended.exit_code == 2
    assert "no session" in ended.errors
