"""Sessions from Python: create, open, run, watch."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import tapml as tml
from tapml.runs.events import Event, PhaseEnded, PhaseStarted
from tapml.runs.journal import JOURNAL
from tapml.session.events import OperatorChanged
from tapml.session.folder import is_session
from tapml.session.journal import open_journal
from tapml.session.settings import Settings
from tapml_targets.errors import InputError
from tests.offload.sessions import FinishedSession, read_report

SETTINGS = Settings("some-model", "opencl", tokens=("1 2",))


def test_a_session_is_opened_as_it_was_created(tmp_path: Path) -> None:
    created = tml.OffloadSession.create(tmp_path / "session", SETTINGS)
    assert is_session(created.folder)
    assert tml.OffloadSession.open(tmp_path / "session").settings == SETTINGS


def test_a_folder_with_a_session_is_not_created_over(tmp_path: Path) -> None:
    tml.OffloadSession.create(tmp_path, SETTINGS)
    with pytest.raises(InputError, match="has a session"):
        tml.OffloadSession.create(tmp_path, SETTINGS)


def test_a_folder_without_a_session_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a session"):
        tml.OffloadSession.open(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_session_that_ran_keeps_its_settings(tmp_path: Path) -> None:
    session = tml.OffloadSession.create(tmp_path, SETTINGS)
    with open_journal(tmp_path / JOURNAL) as journal:
        journal.append("rooted")
    other = Settings("some-model", "opencl", tokens=("3",), new_tokens=9)
    again = session.create_or_open(tmp_path, other, given={"tokens": ("1 2",)})
    assert again.settings == SETTINGS, "what was not named is not compared"
    with pytest.raises(InputError, match=r"created with new_tokens = 6, not 9.*--restart"):
        session.create_or_open(tmp_path, other, given={"new_tokens": 9})
    assert session.create_or_open(tmp_path, other, given={}, restart=True).settings == other


def test_a_session_goes_on_with_another_device_once_that_has_opened(tmp_path: Path) -> None:
    begun = msgspec.structs.replace(SETTINGS, device="tcp://127.0.0.1:41234")
    session = tml.OffloadSession.create(tmp_path, begun)
    with open_journal(tmp_path / JOURNAL) as journal:
        journal.append("rooted")
    other = session.create_or_open(tmp_path, begun, given={"device": "tcp://127.0.0.1:41235"})
    assert other.settings == msgspec.structs.replace(begun, device="tcp://127.0.0.1:41235")
    assert tml.OffloadSession.open(tmp_path).settings == begun


def test_starting_over_deletes_no_kernel_that_somebody_wrote(tmp_path: Path) -> None:
    session = tml.OffloadSession.create(tmp_path / "session", SETTINGS)
    kernel = tmp_path / "session" / "kernels" / "softmax" / "opencl" / "kernel.toml"
    kernel.parent.mkdir(parents=True)
    kernel.write_text("format = 1\n")
    with pytest.raises(InputError, match="hand-written kernels"):
        session.create_or_open(tmp_path / "session", SETTINGS, given={}, restart=True)
    assert kernel.read_text() == "format = 1\n"
    (tmp_path / "session" / "kernels").rename(tmp_path / "kernels")
    session.create_or_open(tmp_path / "session", SETTINGS, given={}, restart=True)
    assert not (tmp_path / "session" / "kernels").exists()


def test_a_session_that_never_ran_takes_new_settings(tmp_path: Path) -> None:
    session = tml.OffloadSession.create(tmp_path, SETTINGS)
    other = Settings("another-model", "opencl")
    assert session.create_or_open(tmp_path, other, given={}).settings == SETTINGS
    again = session.create_or_open(tmp_path, other, given={"model": "another-model"})
    assert again.settings == tml.OffloadSession.open(tmp_path).settings == other


def test_a_process_killed_before_it_wrote_the_settings_leaves_a_usable_folder(
    tmp_path: Path,
) -> None:
    with open_journal(tmp_path / JOURNAL):
        pass
    with pytest.raises(InputError, match="without settings"):
        tml.OffloadSession.open(tmp_path)
    session = tml.OffloadSession.create_or_open(tmp_path, SETTINGS, given={})
    assert session.settings == SETTINGS


def test_a_watcher_sees_every_operator_and_phase(
    finished: FinishedSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAPML_CACHE_DIR", str(finished.cache))
    seen: list[Event] = []
    session = tml.OffloadSession.open(finished.copy(tmp_path / "session"))
    result = session.run(seen.append)
    assert (result.status, result.exit_code) == ("pass", 0)
    assert result.report == read_report(session.folder)
    assert result.report["summary"] == finished.report["summary"]
    assert result.report_path == session.folder / "report.html"
    moved = [e.operator for e in seen if isinstance(e, OperatorChanged) and e.state == "moved"]
    assert moved == [each["name"] for each in finished.report["operators"]]
    started = [each.name for each in seen if isinstance(each, PhaseStarted)]
    ended = [each.name for each in seen if isinstance(each, PhaseEnded)]
    assert set(started) <= set(ended)
