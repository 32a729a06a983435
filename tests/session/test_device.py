"""The device of the run before is used where what is written there is one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tapml.session.device import DEVICE, SETTINGS, SessionDevice
from tapml.session.journal import open_journal
from tapml.session.settings import Settings
from tapml_targets.errors import InputError


@pytest.mark.parametrize("text", ["", "opencl", "cpu:0", "opencl:x", "opencl:-1", "7", "gpu:0"])
def test_a_setting_that_is_no_device_of_the_target_is_as_none(tmp_path: Path, text: str) -> None:
    with open_journal(tmp_path / "journal.sqlite") as journal:
        journal.write_setting(DEVICE, text)
        device = SessionDevice(Settings(model="m", target="opencl"), journal)
        assert device._used is None
        assert device._starting is None


def test_another_device_is_the_sessions_once_it_has_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = SimpleNamespace(device=SimpleNamespace(platform="vulkan", index=0, name="a Mac's"))
    monkeypatch.setattr("tapml.session.device.open_device", lambda spec, say: there)
    begun = Settings(model="m", target="metal")
    wanted = Settings(model="m", target="metal", device="tcp://mac:9190")
    said: list[Any] = []
    with open_journal(tmp_path / "journal.sqlite") as journal:
        journal.write_setting(DEVICE, "metal:0")
        journal.write_setting(SETTINGS, begun.to_json())
        with pytest.raises(InputError, match=r"is a device of vulkan, but .* target is metal"):
            SessionDevice(wanted, journal).open(said.append)
        assert journal.read_setting(DEVICE) == "metal:0"
        assert journal.read_setting(SETTINGS) == begun.to_json()
        there.device.platform = "metal"
        SessionDevice(wanted, journal).open(said.append)
        assert journal.read_setting(DEVICE) == "tcp://mac:9190"
        assert journal.read_setting(SETTINGS) == wanted.to_json()
    (note,) = said
    assert "goes on with tcp://mac:9190, a Mac's; before: metal:0" in note.text
