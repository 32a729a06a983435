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


@pytest.mark.parametrize(
    ("used", "check", "device"),
    [
        ("metal:1", False, "metal:1"),
        ("metal:1", True, "metal:1"),
        ("tcp://mac:9190", False, "tcp://mac:9190"),
        ("tcp://mac:9190", True, "metal"),
    ],
)
def test_the_last_device_of_a_session_is_taken(
    tmp_path: Path, used: str, check: bool, device: str
) -> None:
    """A checker is of this machine."""
    tml.OffloadSession.create(tmp_path, Settings(model="m", target="metal"))
    (tmp_path / "suite").mkdir()
    with open_journal(tmp_path / JOURNAL) as journal:
        journal.write_setting(DEVICE, used)
    assert _of_session(Namespace(folder=tmp_path, check=check), None) == [device]


def test_a_suite_has_no_device(tmp_path: Path) -> None:
    assert _of_session(Namespace(folder=tmp_path, check=False), None) == []
