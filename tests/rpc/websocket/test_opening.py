"""The client's way in: what it is told where there is no server for it, and TLS."""

from __future__ import annotations

import logging
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from tapml_rpc.session import Session
from tapml_rpc.websocket.opening import open_websocket
from tapml_targets.errors import InputError, ProtocolError, SetupError
from tests.conftest import RequireDevice
from tests.rpc.websocket.serving import WebSocketServer

TOKEN = "the-secret-of-this-server"


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:9", "ws://", "ws://h:1/path", "ws://user:pw@h:1", "ws://h:x"]
)
def test_what_is_no_address_is_named(address: str) -> None:
    with pytest.raises(InputError, match=r"such as ws://127\.0\.0\.1:9000"):
        open_websocket(address, timeout=1)


def test_nobody_there_is_told_in_time() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(SetupError, match="start one there with `tapml rpc serve`"):
            open_websocket(f"ws://127.0.0.1:{taken.getsockname()[1]}", timeout=0.3)


def test_a_listener_that_says_nothing_is_told_in_time() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(SetupError, match="no tapml server answers"),
    ):
        open_websocket(f"ws://127.0.0.1:{silent.getsockname()[1]}", timeout=0.3)


def test_a_session_over_tls_with_a_token(
    tmp_path: Path, require_device: RequireDevice, caplog: pytest.LogCaptureFixture
) -> None:
    require_device("opencl")
    caplog.set_level(logging.DEBUG)
    certificate = tmp_path / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(tmp_path / "key.pem"), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    both = tmp_path / "both.pem"
    both.write_bytes((tmp_path / "key.pem").read_bytes() + certificate.read_bytes())
    trusting = ssl.create_default_context(cafile=str(certificate))
    with WebSocketServer("--token", TOKEN, "--pem", str(both)) as server:
        assert server.address.startswith("wss://")
        with pytest.raises(SetupError, match="no TLS connection"):
            open_websocket(server.address, timeout=10, token=TOKEN)
        with pytest.raises((SetupError, ProtocolError)):
            open_websocket(server.address.replace("wss", "ws"), timeout=2, token=TOKEN)
        transport = open_websocket(server.address, timeout=10, token=TOKEN, ssl_context=trusting)
        with Session(transport) as session:
            data = bytes(range(256)) * (20 << 10)
            buffer = session.allocate(len(data))
            session.write(buffer, data)
            assert bytes(session.read(buffer)) == data
    assert not server.errors, server.errors.decode()
    # However much the packages below say.
    assert TOKEN not in caplog.text
