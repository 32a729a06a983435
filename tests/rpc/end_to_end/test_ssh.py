"""A board behind an SSH tunnel, as docs/boards.md says, with sshd and ssh of this machine."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from tapml_rpc.client import RemoteTensor, Session, connect
from tapml_targets.errors import DeviceLostError
from tests.conftest import RequireDevice
from tests.rpc.libraries import add_one_library
from tests.rpc.peers import ServerProcess

# The far end is on 127.0.0.1, and this one on another address of loopback: with the same ports.
HERE, THERE = "127.0.0.2", "127.0.0.1"
PATIENCE_SECONDS = 20.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind((THERE, 0))
        return int(found.getsockname()[1])


def wait_for(host: str, port: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        with suppress(OSError):
            socket.create_connection((host, port), 1).close()
            return
        assert time.monotonic() < deadline, f"nothing listens at {host}:{port}"
        time.sleep(0.05)


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def board(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """A board's sshd; the words of `ssh` that lead there, without its forwards."""
    server = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")
    if server is None or shutil.which("ssh") is None:
        pytest.skip("takes the commands ssh and sshd (apt-get install openssh-server)")
    with suppress(OSError):
        # Where its package was installed and never started.
        Path("/run/sshd").mkdir(mode=0o755)
    for name in ("host", "client"):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(make, check=True)
    port = free_port()
    (tmp_path / "config").write_text(
        f"ListenAddress {THERE}:{port}\nHostKey {tmp_path}/host\nPidFile none\nStrictModes no\n"
        f"AuthorizedKeysFile {tmp_path}/client.pub\nPasswordAuthentication no\nUsePAM no\n"
    )
    with running(server, "-D", "-f", str(tmp_path / "config")):
        wait_for(THERE, port)
        yield (
            *("ssh", "-F", os.devnull, "-N", "-i", str(tmp_path / "client"), "-p", str(port)),
            *("-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={os.devnull}"),
            *("-o", "ExitOnForwardFailure=yes", f"{getpass.getuser()}@{THERE}"),
        )


def adds_one(session: Session) -> None:
    library = session.upload(add_one_library())
    values = np.arange(1 << 16, dtype=np.float32)
    tensors = [
        RemoteTensor(session.allocate(values.nbytes), 0, values.shape, "float32") for _ in "xy"
    ]
    session.write(tensors[0].buffer, values)
    session.call(library, "add_one", tensors)
    assert np.array_equal(np.frombuffer(session.read(tensors[1].buffer), np.float32), values + 1)


def test_a_board_is_used_through_a_tunnel_and_lost_with_it(
    require_device: RequireDevice, board: tuple[str, ...]
) -> None:
    require_device("opencl")
    data_port = free_port()
    with ServerProcess("--websocket", f"ws://{THERE}:0", "--data-port", str(data_port)) as server:
        control, web = (
            int(server.line[name].rpartition(":")[2]) for name in ("address", "websocket")
        )
        forwards = (f"{HERE}:{port}:{THERE}:{port}" for port in (control, data_port, web))
        with running(*board, *(word for each in forwards for word in ("-L", each))) as tunnel:
            wait_for(HERE, web)
            with connect(f"ws://{HERE}:{web}") as session:
                adds_one(session)
            with connect(f"tcp://{HERE}:{control}") as session:
                adds_one(session)
                tunnel.kill()
                with pytest.raises(DeviceLostError, match=r"the server is gone|dropped"):
                    for _ in range(1000):
                        session.fence()
                        time.sleep(0.01)
        # The board is there for the next one.
        with connect(server.address) as session:
            adds_one(session)
