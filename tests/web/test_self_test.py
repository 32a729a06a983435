"""What a page was measured to do: asked, kept and shown like what a device of this machine does."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tapml.cli.remote_devices import print_remote_devices, remote_devices
from tapml.devices import self_test
from tapml.devices.self_test import session_self_test
from tapml.session.device_facts import SELF_TEST, record_self_test
from tapml_rpc.session import Session
from tapml_rpc.tracker.request import request_device
from tapml_targets.self_test.facts import from_plain
from tests.rpc.tracker.trackers import wait_for
from tests.web.pages import NAME, DevicePage


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPML_CACHE_DIR", str(tmp_path / "cache"))


def test_a_page_is_measured_once_and_remembered(
    session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    held = session.held_bytes
    found = session_self_test(session)
    assert found is not None and found.problems == ()
    for name in (
        "loop_iterations",
        "float32_multiply_add",
        "float32_denormal_results",
        "float32_tanh_of_45",
        "float32_nan",
        "buffer_bytes",
    ):
        assert found.fact(name) is not None, name
    assert session.held_bytes == held
    monkeypatch.setattr(self_test, "self_test_over", None)
    again = session_self_test(session)
    assert again == found
    # A session's folder has it as that of any device.
    assert record_self_test(tmp_path, session, again, lambda event: None) == found
    kept = json.loads((tmp_path / SELF_TEST).read_text("utf-8"))
    assert from_plain(kept["latest"]) == found
    assert session.device.name in kept["device"]


def test_a_trackers_free_devices_are_measured_when_asked_and_shown(shown: DevicePage) -> None:
    address = shown.tracker.address

    def found(*, self_test: bool) -> dict[str, Any]:
        rows, problem = remote_devices(address, "webgpu", self_test=self_test)
        assert problem == ""
        (row,) = rows
        return row

    wait_for(lambda: found(self_test=False)["leases"] == [])
    assert found(self_test=False)["self_test"] is None
    with request_device(address, name=NAME):
        # Who has it is not disturbed.
        assert found(self_test=True)["self_test"] is None
    wait_for(lambda: found(self_test=False)["leases"] == [])
    measured = found(self_test=True)["self_test"]
    assert from_plain(measured).fact("loop_iterations") is not None
    wait_for(lambda: found(self_test=False)["leases"] == [])
    assert found(self_test=False)["self_test"] == measured
    told = Console(file=StringIO(), width=200)
    print_remote_devices(told, "tracker", [found(self_test=False)])
    assert f"  self-test: {', '.join(measured['traits'])}" in told.file.getvalue()  # type: ignore[attr-defined]
