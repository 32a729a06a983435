"""``tapml rpc tracker`` and ``tapml devices --tracker``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from tapml.cli.main import main
from tapml.cli.remote_devices import addressed_devices
from tapml_rpc.client import connect
from tapml_rpc.tracker.request import request_device
from tapml_targets.description import fingerprint
from tapml_targets.errors import SetupError
from tapml_targets.ranking import find_device
from tapml_targets.self_test.facts import changed_facts, from_plain
from tapml_targets.self_test.known import self_test
from tests.conftest import RequireDevice
from tests.rpc.peers import ServerProcess
from tests.rpc.tracker.trackers import TrackerProcess, made_up_device, registered, wait_for

EVIL = "a\x1b[2J [red]name"


def run_devices(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["devices", "--platform", "cpu", *arguments])
    return code, capsys.readouterr().out


def test_ctrl_c_ends_the_tracker_cleanly() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tapml.cli.main", "rpc", "tracker", "--bind", "tcp://127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    line: dict[str, Any] = json.loads(process.stdout.readline())
    assert line["address"].startswith("tcp://127.0.0.1:") and line["protocol"] == 2
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, b"", b"")


def test_a_trackers_devices_are_shown_beside_local_ones_with_who_has_them(
    shared_tracker: TrackerProcess,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TAPML_TRACKER", shared_tracker.address)
    monkeypatch.setenv("COLUMNS", "200")
    load = {"sessions": 3, "device_bytes": 5 << 20}
    with (
        registered(shared_tracker.address, "pixel", made_up_device("cpu"), load=lambda: load),
        registered(shared_tracker.address, "phone", made_up_device("webgpu")),
        request_device(shared_tracker.address, name="pixel", label=EVIL),
    ):
        code, shown = run_devices(capsys)
        assert code == 0
        (row,) = [line for line in shown.splitlines() if line.startswith("tracker:pixel  ")]
        assert "a?[2J [red]name for" in row and "3, 5 MiB" in row
        assert "phone" not in shown, "another platform was asked for"
        code, text = run_devices(capsys, "--json")
        (remote,) = json.loads(text)["remote"]
        assert remote["spec"] == "tracker:pixel" and len(remote["fingerprint"]) == 64


def test_servers_are_asked_by_their_addresses_with_how_busy_they_are(
    require_device: RequireDevice,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_device("opencl")
    monkeypatch.setenv("COLUMNS", "200")
    websocket = ("--websocket", "ws://127.0.0.1:0")
    with ServerProcess(*websocket) as server:
        asked = (server.address, server.line["websocket"])
        with connect(server.address) as session:
            held = session.allocate(5 << 20)
            session.fence()
            rows = []
            for address in asked:
                # The session that asked before may be counted a moment longer.
                wait_for(lambda: session.load().get("sessions") == 1)
                main(["devices", "--platform", "opencl", "--json", address])
                rows += json.loads(capsys.readouterr().out)["remote"]
        assert [row["spec"] for row in rows] == list(asked)
        for row in rows:
            assert row["fingerprint"] == fingerprint(session.device)
            assert row["limits"]["memory_bytes"] == session.device.limits.memory_bytes
            assert row["load"] == {"sessions": 1, "device_bytes": held.nbytes}
            assert row["leases"] == []
        (row,), _ = addressed_devices([server.address], "opencl", self_test=True)
        known = self_test(find_device("opencl:0"))
        assert known is not None
        assert changed_facts(known, from_plain(row["self_test"])) == ()
        code, shown = run_devices(capsys, *asked)
        assert code == 0 and "servers" not in shown, "another platform was asked for"
        code, shown = run_devices(capsys, *asked, "opencl:0")
        assert code == 3, "what was asked for by its address is not there"
        assert "opencl:0: expected a server's address, tcp://HOST:PORT" in shown


def test_a_tracker_that_is_not_there_hides_no_local_device(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, text = run_devices(capsys, "--json", "--tracker", "tcp://127.0.0.1:1")
    answer = json.loads(text)
    assert "no tracker answers" in answer["problems"]["tracker"]
    assert answer["devices"] != []
    assert code == 3, "it was asked for by its address"
    monkeypatch.setenv("TAPML_TRACKER", "tcp://127.0.0.1:1")
    code, text = run_devices(capsys)
    assert code == 0 and "tracker: no tracker answers" in text


def test_a_fingerprint_is_shown_as_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise SetupError("the certificate's fingerprint is C2:AB:OK:AB")

    monkeypatch.setattr("tapml.devices.reach.open_device", refused)
    _, shown = run_devices(capsys, "wss://127.0.0.1:1")
    assert "C2:AB:OK:AB" in shown
