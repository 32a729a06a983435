"""Names of devices that cannot be, and what is told of an address where no device answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq

from tapml.devices.reach import check_spec, describe_device, open_another, open_device
from tapml_rpc.client import connect
from tapml_rpc.diagnose import told
from tapml_targets.errors import EXIT_NO_DEVICE, InputError, TapmlError, UnreachableError
from tests.conftest import RequireDevice
from tests.rpc.peers import ServerProcess


@pytest.mark.parametrize(
    "spec",
    ["opencl", "opencl:1", "cpu:0", "tcp://board:9190", "wss://[::1]:1", "tracker", "browser"],
)
def test_all_kinds_of_names_are_let_through(spec: str) -> None:
    check_spec(spec)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("tpc://board:1", "expected tcp://, ws:// or wss://, then HOST:PORT"),
        ("https://board:1", "expected tcp://, ws:// or wss://, then HOST:PORT"),
        ("board:9190", "say tcp://board:9190, or ws:// or wss:// before it"),
        ("10.0.0.7:9190", "say tcp://10.0.0.7:9190"),
        ("browser:pixel", "wait, headless, chromium, firefox; a page by its name is tracker:NAME"),
    ],
)
def test_what_is_nearly_an_address_is_told_how_one_is_written(spec: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        open_device(spec)


@contextmanager
def answering(greeting: bytes, answer: bytes) -> Iterator[int]:
    """A port where every connection is greeted, and whatever comes is answered."""

    def serve() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                peer.settimeout(30)
                peer.sendall(greeting)
                if peer.recv(4096):
                    peer.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(30)


def test_a_web_server_is_told_from_what_greets_in_zeromq() -> None:
    with answering(b"", b"HTTP/1.1 404 Not Found\r\n\r\n") as port:
        assert f"speaks HTTP, as a server does over WebSocket: is it ws://127.0.0.1:{port}" in told(
            f"tcp://127.0.0.1:{port}"
        )
        assert told(f"ws://127.0.0.1:{port}") == ""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    assert f"speaks ZeroMQ: is it tcp://127.0.0.1:{port}" in told(f"wss://127.0.0.1:{port}")
    assert told(f"tcp://127.0.0.1:{port}") == ""
    context.destroy(linger=0)


@pytest.mark.parametrize("host", ["my..board", "b" * 64])
@pytest.mark.parametrize("scheme", ["tcp", "ws"])
def test_a_host_that_cannot_be_is_said_to_be_none(scheme: str, host: str) -> None:
    assert f"there is no host '{host}'" in told(f"{scheme}://{host}:9190")
    with pytest.raises(TapmlError, match="there is no host"):
        connect(f"{scheme}://{host}:9190", timeout=1).close()


def test_a_name_that_no_server_answers_for_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered = threading.Event()

    def look_up(*_: object) -> None:
        answered.wait(30)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    with monkeypatch.context() as patched:
        patched.setattr("socket.getaddrinfo", look_up)
        for scheme in ("tcp", "ws"):
            with pytest.raises(UnreachableError, match=r"not be looked up within 0\.\d+ s"):
                connect(f"{scheme}://board:9190", timeout=0.05)
        answered.set()
        with pytest.raises(UnreachableError, match=r"'board' could not be looked up: .*Temporary"):
            connect("tcp://board:9190", timeout=1)
        with pytest.raises(UnreachableError, match="no tapml server answers"):
            connect("tcp://127.0.0.1;127.0.0.1:9", timeout=0.05)


def test_what_says_nothing_known_is_not_guessed_at() -> None:
    with answering(b"", b"220 welcome\r\n") as port:
        assert told(f"tcp://127.0.0.1:{port}") == ""


def test_an_empty_port_and_a_host_that_is_not_there_are_told() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert told(f"tcp://127.0.0.1:{bound.getsockname()[1]}") == " (nothing listens there)"
    assert told("tcp://no-such-host.invalid:1") == " (there is no host 'no-such-host.invalid')"


@pytest.mark.parametrize("scheme", ["tcp", "ws", "wss"])
def test_where_nothing_answers_there_is_no_such_device(scheme: str) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"{scheme}://127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(UnreachableError, match=f"no tapml server answers at {address}") as gone:
            connect(address, timeout=0.2).close()
    assert gone.value.exit_code == EXIT_NO_DEVICE


@pytest.mark.parametrize("port", ["", "x", "91x0", "0", "65536", "99999"])
def test_what_is_no_port_is_refused_at_once(port: str) -> None:
    with pytest.raises(InputError, match=f"'{port}' is not a port from 1 to 65535"):
        connect(f"tcp://127.0.0.1:{port}", timeout=3600).close()


@pytest.mark.parametrize("address", ["user@host:9190", ":9190"])
def test_a_port_that_is_right_is_not_blamed(address: str) -> None:
    with pytest.raises(InputError, match="expected tcp://HOST:PORT") as refused:
        connect(f"tcp://{address}", timeout=3600).close()
    assert "not a port" not in str(refused.value)


@pytest.mark.parametrize("address", ["tcp://board", "tcp://board:x", "tcp://["])
def test_what_is_no_address_is_not_looked_at(address: str) -> None:
    assert told(address) == ""


def test_another_session_with_the_same_device_is_its_own(require_device: RequireDevice) -> None:
    require_device("opencl")
    with ServerProcess() as server:
        with open_device(server.address) as session:
            with open_another(session) as another, open_another(another) as third:
                assert third.address == another.address == session.address
                assert another.device == session.device
                held = another.allocate(64)
                another.write(held, bytes(64))
            buffer = session.allocate(64)
            session.write(buffer, bytes(range(64)))
            assert bytes(session.read(buffer)) == bytes(range(64))
        assert describe_device(server.address) == session.device
