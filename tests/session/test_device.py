"""The device of the run before is used where what is written there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tapml.session.device import DEVICE, SessionDevice
from tapml.session.journal import open_journal
from tapml.session.settings import Settings


@pytest.mark.parametrize("text", ["", "opencl", "cpu:0", "opencl:x", "opencl:-1", "7", "gpu:0"])
def test_a_setting_that_is_no_device_of_the_target_is_as_none(tmp_path: Path, text: str) -> None:
    with open_journal(tmp_path / "journal.sqlite") as journal:
        journal.write_setting(DEVICE, text)
        device = SessionDevice(Settings(model="m", target="opencl"), journal)
        assert device._used is None
        assert device._starting is None
