"""CURVE between real processes: who gets in, and what the others are told."""

from __future__ import annotations

import socket as plain_sockets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import zmq

from tapml.cli.secrets import admit, make_pair, write_pair
from tapml_rpc import wire
from tapml_rpc.link import Link
from tapml_rpc.security.allow_list import AllowList
from tapml_rpc.security.curve import (
    Authenticator,
    ClientCurve,
    ServerCurve,
    apply_client,
    apply_server,
    client_identity,
)
from tapml_rpc.security.handshake import HandshakeWatch, greeted_mechanism
from tapml_rpc.security.keys import KeyPair
from tapml_rpc.security.standing import LOOPBACK_IDENTITY
from tapml_rpc.transport import Pending
from tapml_rpc.welcome import hello
from tapml_rpc.zeromq.opening import connect_dealer, greet, open_zeromq
from tapml_targets.errors import InputError, SetupError
from tests.rpc.security import curve_server

SECONDS = 15.0
"""Within so long a caller is told; the machine may be busy."""


class Answer(Pending[Any]):
    """What a batch's one command gave."""

    value: Any = None

    def resolve(self, value: Any, chunk: memoryview) -> None:
        self.value = value


class Device:
    """A server process with keys and a list of its own."""

    def __init__(self, folder: Path, *, keys: bool = True) -> None:
        self.pair = make_pair("device")
        self.clients = folder / "clients"
        secret = str(write_pair(self.pair, folder)) if keys else "-"
        self.process = subprocess.Popen(
            [sys.executable, curve_server.__file__, secret, str(self.clients)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()

    def end(self) -> str:
        """End it; what it printed for its operator."""
        self.process.kill()
        return self.process.communicate()[1]


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    running = Device(tmp_path)
    yield running
    running.end()


@pytest.fixture(scope="module")
def plain_device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    running = Device(tmp_path_factory.mktemp("plain"), keys=False)
    yield running
    running.end()


def identity_over(link: Link) -> str:
    """Whom the server takes this link's client for."""
    answer = Answer()
    link.wait(link.send([["who"]], b"", {0: answer}))
    return str(answer.value)


def refused(address: str, curve: ClientCurve | None, match: str) -> str:
    """What a caller is told who does not get in."""
    started = time.monotonic()
    with pytest.raises(SetupError, match=match) as raised:
        open_zeromq(address, timeout=30, curve=curve)
    assert time.monotonic() - started < SECONDS
    return str(raised.value)


def test_the_server_knows_each_client_by_its_key(device: Device) -> None:
    pairs = [make_pair("ada"), make_pair("bob")]
    for pair in pairs:
        admit(device.clients, pair.name, pair.public)
    links = [
        open_zeromq(device.address, timeout=SECONDS, curve=ClientCurve(pair, device.pair.public))
        for pair in pairs
    ]
    try:
        assert [identity_over(link) for link in links] == [pair.public for pair in pairs]
    finally:
        for link in links:
            link.close()


def test_an_unknown_key_is_told_how_to_be_admitted_on_both_sides(device: Device) -> None:
    stranger = make_pair("ada")
    curve = ClientCurve(stranger, device.pair.public)
    said = refused(device.address, curve, "does not admit this client's key 'ada'")
    assert "tapml rpc keygen --authorize=" in said and stranger.public in said
    refused(device.address, curve, "does not admit")
    admit(device.clients, "ada", stranger.public)
    open_zeromq(device.address, timeout=SECONDS, curve=curve).close()
    log = device.end()
    assert log.count("refused a client at 127.0.0.1") == 1
    assert stranger.public in log and str(device.clients) in log
    assert stranger.secret not in said + log


def test_a_client_that_is_taken_out_does_not_come_back(device: Device) -> None:
    pair = make_pair("ada")
    curve = ClientCurve(pair, device.pair.public)
    admit(device.clients, "ada", pair.public)
    open_zeromq(device.address, timeout=SECONDS, curve=curve).close()
    device.clients.write_text("# nobody\n")
    refused(device.address, curve, "does not admit")


def test_a_damaged_list_admits_nobody_and_says_so_on_both_sides(device: Device) -> None:
    pair = make_pair("ada")
    admit(device.clients, "ada", pair.public)
    device.clients.write_text(device.clients.read_text() + "oops\n")
    curve = ClientCurve(pair, device.pair.public)
    refused(device.address, curve, "cannot read its list of clients")
    assert "clients, line 3" in device.end()


def test_a_wrong_server_key_is_named_and_nothing_is_sent(device: Device) -> None:
    pair, other = make_pair("ada"), make_pair("other")
    admit(device.clients, "ada", pair.public)
    said = refused(device.address, ClientCurve(pair, other.public), "not the one whose public key")
    assert other.public in said


def test_a_client_without_keys_is_told_to_make_some(device: Device) -> None:
    refused(device.address, None, r"wants keys.*tapml rpc keygen.*TAPML_RPC_SERVER_KEY")


def test_a_client_with_keys_does_not_talk_to_a_server_without(plain_device: Device) -> None:
    curve = ClientCurve(make_pair("ada"), make_pair("device").public)
    refused(plain_device.address, curve, "speaks without encryption")


def test_a_server_without_keys_is_named_even_where_it_hangs_up_first() -> None:
    """Whoever notices first ends the connection; its greeting tells all the same."""
    with serving(greet_and_hang_up_on_keys) as address:
        curve = ClientCurve(make_pair("ada"), make_pair("device").public)
        refused(address, curve, "speaks without encryption")


def test_a_greeting_names_the_mechanism(device: Device, plain_device: Device) -> None:
    assert greeted_mechanism(device.address, SECONDS) == "CURVE"
    assert greeted_mechanism(plain_device.address, SECONDS) == "NULL"


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4])
def test_what_does_not_greet_has_no_mechanism(said: bytes) -> None:
    with serving(lambda connection: connection.sendall(said)) as address:
        assert greeted_mechanism(address, SECONDS) is None
    assert greeted_mechanism(address, SECONDS) is None  # nobody listens any more


def greet_with_keys_or_hang_up_first(connection: plain_sockets.socket) -> None:
    """Hang up on a libzmq, which says ten bytes and waits; greet who says more."""
    connection.settimeout(SECONDS)
    heard = connection.recv(12)
    if len(heard) == 12:
        connection.sendall((b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE").ljust(64, b"\0"))


def test_a_server_with_keys_is_named_even_where_it_hangs_up_first() -> None:
    with serving(greet_with_keys_or_hang_up_first) as address:
        refused(address, None, "wants keys and none were given")


def test_a_data_address_that_cannot_be_reached_is_said(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    client, keys = make_pair("ada"), make_pair("device")
    path = tmp_path / "clients"
    admit(path, "ada", client.public)
    curve = ServerCurve(keys, AllowList(path))
    with plain_sockets.socket() as closed, Authenticator(context, curve.clients):
        # Bound, so that nobody else is, and listening to nobody.
        closed.bind(("127.0.0.1", 0))
        server, address = router(context, curve)
        data_address = f"tcp://127.0.0.1:{closed.getsockname()[1]}"

        def welcome() -> None:
            identity, hello = server.recv_multipart()
            answer = curve_server.welcome(data_address)
            assert wire.unpack(hello)["type"] == "hello"
            server.send_multipart([identity, wire.pack(answer)])

        thread = threading.Thread(target=welcome)
        thread.start()
        with pytest.raises(SetupError, match=r"data address .* both its ports must be open"):
            open_zeromq(address, timeout=3, curve=ClientCurve(client, keys.public))
        thread.join()


def answer_like_a_web_server(connection: plain_sockets.socket) -> None:
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n" * 4)
    connection.recv(4096)


def test_what_speaks_no_zeromq_is_said() -> None:
    with serving(answer_like_a_web_server) as address:
        curve = ClientCurve(make_pair("ada"), make_pair("device").public)
        refused(address, curve, "does not speak ZeroMQ")


def test_a_connection_given_up_before_the_hello_is_said_as_well() -> None:
    curve = ClientCurve(make_pair("ada"), make_pair("device").public)
    with serving(answer_like_a_web_server) as address, zmq.Context() as context:
        control, monitor = connect_dealer(context, address, curve)
        with control, monitor:
            deadline = time.monotonic() + SECONDS
            while control.poll(0, zmq.POLLOUT):
                assert time.monotonic() < deadline, "libzmq keeps a connection that speaks no ZMTP"
                time.sleep(0.01)
            with pytest.raises(SetupError, match="does not speak ZeroMQ"):
                greet(
                    control,
                    HandshakeWatch(monitor, address, curve),
                    address,
                    wire.pack(hello(None, "")),
                    timeout=30,
                )


def test_a_server_that_hangs_up_on_a_plain_client_is_said_at_the_timeout() -> None:
    with (
        serving(lambda connection: None) as address,
        pytest.raises(SetupError, match=r"drops them at once.*tapml rpc serve"),
    ):
        open_zeromq(address, timeout=0.5)


def greet_and_hang_up_on_keys(connection: plain_sockets.socket) -> None:
    """Greet as a server without keys does; end the connection of one that comes with them."""
    connection.sendall((b"\xff" + bytes(8) + b"\x7f\x03\x00NULL").ljust(64, b"\0"))
    heard = b""
    while b"CURVE" not in heard and (part := connection.recv(64)):
        heard += part


@contextmanager
def serving(answer: Callable[[plain_sockets.socket], object]) -> Iterator[str]:
    """Address of a plain server that answers each connection and ends it."""
    with plain_sockets.create_server(("127.0.0.1", 0)) as listening:
        stop = threading.Event()

        def serve() -> None:
            listening.settimeout(0.05)
            while not stop.is_set():
                # Nobody came, or the other side ended it.
                with suppress(OSError), listening.accept()[0] as connection:
                    connection.settimeout(0.5)
                    answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            stop.set()
            thread.join()


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(linger=0)


def router(
    context: zmq.Context[zmq.Socket[bytes]], curve: ServerCurve | None
) -> tuple[zmq.Socket[bytes], str]:
    socket = context.socket(zmq.ROUTER)
    apply_server(socket, curve)
    socket.bind("tcp://127.0.0.1:0")
    return socket, socket.getsockopt_string(zmq.LAST_ENDPOINT)


def test_without_its_authenticator_a_server_admits_nobody(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    client, keys = make_pair("ada"), make_pair("device")
    path = tmp_path / "clients"
    admit(path, "ada", client.public)
    curve = ServerCurve(keys, AllowList(path))
    server, address = router(context, curve)
    refused(address, ClientCurve(client, keys.public), "not the one whose public key")
    assert not server.poll(0)


def test_after_its_end_an_authenticator_admits_nobody(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    client, keys = make_pair("ada"), make_pair("device")
    path = tmp_path / "clients"
    admit(path, "ada", client.public)
    curve = ServerCurve(keys, AllowList(path))
    with Authenticator(context, curve.clients) as authenticator:
        server, address = router(context, curve)
        dealer = context.socket(zmq.DEALER)
        apply_client(dealer, ClientCurve(client, keys.public))
        dealer.connect(address)
        dealer.send(b"in")
        assert server.poll(5000) and server.recv_multipart()[1] == b"in"
    authenticator.close()
    refused(address, ClientCurve(client, keys.public), "not the one whose public key")


def test_a_client_on_a_plain_socket_cannot_say_who_it_is(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    """ZMTP's READY may carry any property, and libzmq shows it as if it had been proved."""
    server, address = router(context, None)
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    with plain_sockets.create_connection((host, int(port))) as liar:
        liar.settimeout(SECONDS)
        liar.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
        claimed = make_pair("x").public.encode()
        ready = b"\x05READY" + _property(b"Socket-Type", b"DEALER") + _property(b"User-Id", claimed)
        liar.sendall(bytes([4, len(ready)]) + ready)
        # With a time limit a socket gives what has come, of a greeting and a READY.
        heard = b""
        while b"READY" not in heard:
            heard += (part := liar.recv(1000))
            assert part, heard
        liar.sendall(b"\x00\x02hi")
        assert server.poll(5000)
        frames = server.recv_multipart(copy=False)
    assert frames[1].bytes == b"hi"
    assert frames[1].get("User-Id") == claimed.decode(), "the lie no longer reaches us"
    assert client_identity(frames[1], None) == LOOPBACK_IDENTITY


def _property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value


def test_a_message_without_a_key_is_no_message_of_anybody(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    server, address = router(context, None)
    dealer = context.socket(zmq.DEALER)
    dealer.connect(address)
    dealer.send(b"hi")
    assert server.poll(5000)
    curve = ServerCurve(make_pair("device"), AllowList(tmp_path / "clients"))
    with pytest.raises(InputError, match="has no client key"):
        client_identity(server.recv_multipart(copy=False)[1], curve)


def test_refusals_are_told_once_for_each_key(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    keys = make_pair("device")
    told: list[str] = []
    curve = ServerCurve(keys, AllowList(tmp_path / "clients"))
    with Authenticator(context, curve.clients, say=told.append):
        _, address = router(context, curve)
        strangers = [make_pair("a"), make_pair("b")]
        for stranger in [*strangers, *strangers]:
            refused(address, ClientCurve(stranger, keys.public), "does not admit")
    assert len(told) == 2 and strangers[0].public in told[0] and strangers[1].public in told[1]


def test_the_secret_is_in_no_text_about_the_keys(tmp_path: Path) -> None:
    keys, client = make_pair("device"), make_pair("ada")
    shown = repr(ServerCurve(keys, AllowList(tmp_path))) + repr(ClientCurve(client, keys.public))
    assert keys.secret not in shown and client.secret not in shown


@pytest.mark.parametrize("server", ["", "nonsense", "x" * 41])
def test_a_server_key_that_is_none_is_said_before_anything_connects(server: str) -> None:
    with pytest.raises(InputError, match="the server's public key"):
        ClientCurve(KeyPair("a", "b", "c"), server)


def test_ones_own_key_is_not_the_servers() -> None:
    pair = make_pair("ada")
    with pytest.raises(InputError, match="is this client's own"):
        ClientCurve(pair, pair.public)
