"""The server process: its line, its address, its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from scripts.processes import own_bytes
from tapml.cli.main import main
from tapml_rpc.client import connect
from tapml_targets.description import from_plain
from tapml_targets.errors import EXIT_NO_DEVICE, EXIT_USAGE
from tests.conftest import RequireDevice
from tests.rpc.announced import PATIENCE_SECONDS
from tests.rpc.peers import RawPeer, ServerProcess


def test_one_json_line_says_where_what_and_which_life(server: ServerProcess) -> None:
    assert server.announcement.count(b"\n") == 1
    assert set(server.line) == {"address", "device", "epoch", "pid", "protocol"}
    assert server.address.startswith("tcp://127.0.0.1:")
    assert from_plain(server.line["device"]).platform == "opencl"
    assert server.line["pid"] == server.process.pid


def test_the_welcome_says_what_the_line_said(server: ServerProcess, peer: RawPeer) -> None:
    assert peer.welcome["epoch"].hex() == server.line["epoch"]
    assert peer.welcome["device"] == server.line["device"]
    assert peer.welcome["version"] == 3
    assert peer.welcome["bounds"]["chunk_bytes"] >= 1 << 20


def test_what_sessions_held_is_given_back_as_they_end() -> None:
    with ServerProcess(device="cpu:0") as server:
        sizes = []
        for _ in range(8):
            with connect(server.address) as session:
                session.fence()
            sizes.append(own_bytes(server.line["pid"]))
        # Of each its buffers, a third of a megabyte, would be left for the garbage collector.
        assert sizes[-1] - sizes[2] < 700_000, sizes


def test_another_protocol_version_is_refused_with_both_named(server: ServerProcess) -> None:
    with RawPeer(server.address, versions=[99]) as future:
        assert future.welcome["type"] == "refused"
        message = future.welcome["error"]["message"]
        assert "speaks protocol version 3, the client [99]" in message


def test_a_session_without_control_is_over_and_says_so_on_data(server: ServerProcess) -> None:
    peer = RawPeer(server.address)
    try:
        with RawPeer(server.address) as beside:
            assert peer.batch(["fence"])[0]["type"] == "done"
            peer.control.close(linger=0)
            beside.wait_for(sessions=1)
        answer, _ = peer.batch(["fence"])
        assert answer["error"]["kind"] == "DeviceLostError"
        assert "its control connection is gone" in answer["error"]["message"]
    finally:
        peer.context.destroy(linger=0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(require_device: RequireDevice, number: signal.Signals) -> None:
    require_device("opencl")
    with ServerProcess() as server, RawPeer(server.address) as peer:
        peer.batch(["allocate", 1, 1 << 20])
        server.process.send_signal(number)
        _, log = server.process.communicate(timeout=PATIENCE_SECONDS)
        assert server.process.returncode == 0
        assert log == b""


def test_it_ends_with_the_process_that_started_it(require_device: RequireDevice) -> None:
    require_device("opencl")
    script = textwrap.dedent("""
        import signal
        from tapml_rpc.local import open_local
        session = open_local("opencl")
        print(session._link._watch.process.pid, flush=True)
        signal.pause()
    """)
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while _is_alive(pid):
        assert time.monotonic() < deadline, "the server outlives its parent"
        time.sleep(0.05)


def test_ctrl_c_in_the_client_leaves_no_process(require_device: RequireDevice) -> None:
    require_device("opencl")
    script = textwrap.dedent("""
        import sys
        from tapml_rpc.client import RemoteTensor
        from tapml_rpc.local import open_local
        from tests.rpc.libraries import NEVER_ENDS, add_one_library
        with open_local("opencl") as session:
            library = session.upload(add_one_library(NEVER_ENDS))
            tensors = [RemoteTensor(session.allocate(256), 0, (64,), "float32") for _ in range(2)]
            for tensor in tensors:
                session.fill(tensor.buffer, b"\\0")
            session.call(library, "add_one", tensors)
            print(session._link._watch.process.pid, flush=True)
            session.fence()
    """)
    client = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert client.stdout is not None
    pid = int(client.stdout.readline())
    time.sleep(0.3)
    os.killpg(client.pid, signal.SIGINT)
    _, log = client.communicate(timeout=PATIENCE_SECONDS)
    assert b"KeyboardInterrupt" in log
    assert not _is_alive(pid)


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:0", "tcp://192.168.1.4:9000"])
def test_an_address_off_loopback_is_refused_in_one_line(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rpc", "serve", "--bind", address]) == EXIT_USAGE
    out, log = capsys.readouterr()
    assert out == "" and log.count("\n") == 1
    assert "only loopback is safe" in log


def test_an_address_in_use_is_said(server: ServerProcess) -> None:
    second = subprocess.run(
        [
            sys.executable,
            "-m",
            *("tapml.cli.main", "rpc", "serve"),
            "--bind",
            server.address,
            "--device",
            "opencl:0",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode == EXIT_USAGE
    assert f"cannot listen on {server.address}: Address already in use" in second.stderr


def test_devices_that_are_not_there_are_named(
    require_device: RequireDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    require_device("opencl")
    assert main(["rpc", "serve", "--device", "opencl:99"]) == EXIT_NO_DEVICE
    assert main(["rpc", "serve", "--device", "abacus"]) == EXIT_USAGE
    log = capsys.readouterr().err
    assert "opencl:99" in log and "known targets:" in log


def test_sessions_beyond_the_bound_are_refused(require_device: RequireDevice) -> None:
    require_device("opencl")
    with ServerProcess() as server, RawPeer(server.address) as first:
        bound = first.welcome["bounds"]["sessions"]
        others = [RawPeer(server.address) for _ in range(bound - 1)]
        try:
            with RawPeer(server.address) as late:
                assert late.welcome["type"] == "refused"
                assert late.welcome["error"]["kind"] == "SetupError"
        finally:
            for other in others:
                other.context.destroy(linger=0)
        # They never said goodbye: the next one to come makes the server look.
        deadline = time.monotonic() + PATIENCE_SECONDS
        kind = ""
        while kind != "welcome":
            assert time.monotonic() < deadline
            with RawPeer(server.address) as next_one:
                kind = next_one.welcome["type"]


def test_prints_of_a_driver_do_not_reach_standard_output(server: ServerProcess) -> None:
    assert json.loads(server.announcement)
    links = [Path(f"/proc/{server.process.pid}/fd/{number}").readlink() for number in (1, 2)]
    assert links[0] == links[1]


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
