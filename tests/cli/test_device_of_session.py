"""A session's tests are replayed and checked on its own device, where no other is named."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

import tapml as tml
from tapml.cli.replay import _of_session
from tapml.runs.journal import JOURNAL
from tapml.session.device import DEVICE
from tapml.session.journal import open_journal
from tapml.session.settings import Settings
from tapml_targets.errors import NoSuchDeviceError


def only_one(text: str) -> None:
    """A machine with one device."""
    if text != "metal:1":
        raise NoSuchDeviceError(text)


@pytest.mark.parametrize(
    ("used", "check", "device"),
    [
        ("metal:1", False, "metal:1"),
        ("metal:1", True, "metal:1"),
        ("metal:2", False, "metal"),
        ("tcp://mac:9190", False, "tcp://mac:9190"),
        ("tcp://mac:9190", True, "metal"),
    ],
)
def test_the_last_device_of_a_session_is_taken(
    tmp_path: Path,
    used: str,
    check: bool,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A checker is of this machine, and where the device is gone the best other one is taken."""
    monkeypatch.setattr("tapml_targets.ranking.find_device", only_one)
    tml.OffloadSession.create(tmp_path, Settings(model="m", target="metal"))
    (tmp_path / "suite").mkdir()
    with open_journal(tmp_path / JOURNAL) as journal:
        journal.write_setting(DEVICE, used)
    assert _of_session(Namespace(folder=tmp_path, check=check), None) == [device]
    assert ("metal:2 is gone" in capsys.readouterr().err) == (used == "metal:2")


def test_a_suite_has_no_device(tmp_path: Path) -> None:
    assert _of_session(Namespace(folder=tmp_path, check=False), None) == []
