"""A served device, reached with keys and with a token: the whole way, in real processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from tapml.cli.secrets import add_token, admit, make_pair, write_pair
from tapml_rpc import wire
from tapml_rpc.client import connect
from tapml_rpc.security.credentials import Credentials
from tapml_rpc.security.curve import ClientCurve, apply_client
from tapml_rpc.security.keys import KeyPair
from tapml_rpc.security.standing import HELLOS
from tapml_rpc.security.token import make_token
from tapml_rpc.session import Session
from tapml_rpc.zeromq.opening import open_zeromq
from tapml_targets.errors import DeviceLostError, SetupError
from tests.conftest import RequireDevice
from tests.rpc.peers import ServerProcess

NAMES = ("ada", "bob")


class Served:
    """A supervisor that listens everywhere, on both bindings, and those it admits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.device = make_pair("device")
        self.clients = {name: make_pair(name) for name in NAMES}
        for name, pair in self.clients.items():
            admit(folder / "clients", name, pair.public)
        self.token = add_token(folder / "tokens", "page")
        words = [
            "--bind",
            "tcp://0.0.0.0:0",
            "--key",
            str(write_pair(self.device, folder / "keys")),
        ]
        words += ["--clients", str(folder / "clients"), "--tokens", str(folder / "tokens")]
        words += ["--websocket", "wss://0.0.0.0:0"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TAPML_CONFIG_DIR", str(folder))
            self.process = ServerProcess(*words)
        self.line = self.process.line
        self.address = self.line["address"].replace("0.0.0.0", "127.0.0.1")
        self.websocket = self.line["websocket"].replace("0.0.0.0", "127.0.0.1")

    def curve(self, pair: KeyPair) -> ClientCurve:
        """A client's keys beside the server's."""
        return ClientCurve(pair, self.device.public)


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, require_device: RequireDevice
) -> Iterator[Served]:
    require_device("opencl")
    running = Served(tmp_path_factory.mktemp("served"))
    with running.process:
        yield running


def works(session: Session) -> bool:
    """Whether a byte comes back from the device."""
    with session:
        buffer = session.allocate(4)
        session.write(buffer, b"abcd")
        return bytes(session.read(buffer, 4)) == b"abcd"


def test_an_admitted_key_reaches_the_device(served: Served) -> None:
    assert served.line["server_key"] == served.device.public
    credentials = Credentials(keys=served.clients["ada"], server_key=served.device.public)
    assert works(connect(served.address, credentials=credentials))


def test_without_keys_or_with_strange_ones_nobody_does(served: Served) -> None:
    with pytest.raises(SetupError, match="wants keys and none were given"):
        connect(served.address)
    stranger = Credentials(keys=make_pair("eve"), server_key=served.device.public)
    with pytest.raises(SetupError, match="does not admit this client's key 'eve'"):
        connect(served.address, credentials=stranger)


def test_a_server_goes_on_that_has_something_to_say_and_nobody_who_reads_it(
    served: Served,
) -> None:
    process = served.process.process
    assert process.stderr is not None
    process.stderr.close()
    process.stderr = None
    stranger = Credentials(keys=make_pair("mallory"), server_key=served.device.public)
    with pytest.raises(SetupError, match="does not admit this client's key 'mallory'"):
        connect(served.address, credentials=stranger)
    credentials = Credentials(keys=served.clients["ada"], server_key=served.device.public)
    assert works(connect(served.address, credentials=credentials))


def test_an_admitted_client_cannot_speak_for_anothers_session(served: Served) -> None:
    link = open_zeromq(served.address, timeout=10, curve=served.curve(served.clients["ada"]))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        thief = context.socket(zmq.DEALER)
        apply_client(thief, served.curve(served.clients["bob"]))
        thief.connect(served.address)
        thief.send(wire.pack({"type": "ping", "sequence": 1, "session": link.token}))
        assert thief.poll(10_000)
        answer = wire.unpack(thief.recv())
        assert answer["type"] == "refused" and "session" in answer["error"]["message"]
        assert not link.closed
        assert works(Session(link))
    finally:
        context.destroy(linger=0)
        link.close()


def test_a_client_that_breaks_the_bounds_reads_which(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk too long is refused, one far too long ends it."""
    most = wire.MAX_CHUNK_BYTES
    # In this process alone: our own client would refuse to send it.
    monkeypatch.setattr(wire, "MAX_CHUNK_BYTES", 1 << 30)
    link = open_zeromq(served.address, timeout=60, curve=served.curve(served.clients["ada"]))
    try:
        refused = link.send([["fence"]], bytes(most + 1))
        link.wait(refused)
        assert "a chunk of 4194305 bytes; at most 4194304" in str(refused.failure)
        assert not link.closed
        link.wait(link.send([["fence"]], bytes(most)))
        with pytest.raises(DeviceLostError, match=r"data connection is gone.*a chunk 4194304"):
            link.wait(link.send([["fence"]], bytes(wire.MAX_FRAME_BYTES + 1)))
    finally:
        link.close()
    assert works(
        Session(open_zeromq(served.address, timeout=60, curve=served.curve(served.clients["bob"])))
    )


@pytest.mark.parametrize("which", ["announced", "listed"])
def test_a_token_and_the_announced_fingerprint_reach_the_device(served: Served, which: str) -> None:
    token = served.token if which == "listed" else served.line["token"]
    credentials = Credentials(token=token, fingerprint=served.line["fingerprint"])
    assert works(connect(served.websocket, credentials=credentials))


def test_a_wrong_token_or_certificate_does_not(served: Served) -> None:
    fingerprint = served.line["fingerprint"]
    with pytest.raises(SetupError, match=r"401.*token"):
        connect(
            served.websocket, credentials=Credentials(token=make_token(), fingerprint=fingerprint)
        )
    with pytest.raises(SetupError, match="somebody is in between"):
        connect(
            served.websocket, credentials=Credentials(token=served.token, fingerprint="ab" * 32)
        )
    with pytest.raises(SetupError, match="fingerprint that `tapml rpc serve` printed"):
        connect(served.websocket, credentials=Credentials(token=served.token))


def test_large_answers_over_tls_never_wait_for_ever(served: Served) -> None:
    credentials = Credentials(token=served.token, fingerprint=served.line["fingerprint"])
    data = bytes(range(256)) * (20 << 10)
    with connect(served.websocket, credentials=credentials) as session:
        buffer = session.allocate(len(data))
        session.write(buffer, data)
        for _ in range(8):
            assert bytes(session.read(buffer)) == data


def take_out(path: Path, what: str) -> None:
    """Write a list without the lines that hold something."""
    kept = [line for line in path.read_text().split("\n") if what not in line]
    path.write_text("\n".join(kept))


def ended(session: Session) -> str:
    """Why a session ends, once it does."""
    deadline = time.monotonic() + 60
    with session:
        buffer = session.allocate(4)
        with pytest.raises(DeviceLostError) as lost:
            while time.monotonic() < deadline:
                session.fill(buffer, b"a")
                session.fence()
    return str(lost.value)


def test_an_open_session_ends_when_its_key_is_taken_out(served: Served) -> None:
    gone = make_pair("gone")
    admit(served.folder / "clients", "gone", gone.public)
    stays = Credentials(keys=served.clients["bob"], server_key=served.device.public)
    goes = Credentials(keys=gone, server_key=served.device.public)
    with (
        connect(served.address, credentials=stays) as other,
        connect(served.address, credentials=goes) as session,
    ):
        session.fence()
        take_out(served.folder / "clients", gone.public)
        assert "its key was taken out of the device's list of clients" in ended(session)
        other.fence()


def test_an_open_session_ends_when_its_token_is_taken_out(served: Served) -> None:
    token = add_token(served.folder / "tokens", "gone")
    credentials = Credentials(token=token, fingerprint=served.line["fingerprint"])
    session = connect(served.websocket, credentials=credentials)
    session.fence()
    take_out(served.folder / "tokens", "gone")
    assert "its token was taken out of the device's list" in ended(session)


def test_a_storm_of_hellos_is_refused_and_others_are_let_in(served: Served) -> None:
    keys = make_pair("storm")
    admit(served.folder / "clients", "storm", keys.public)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    storm = context.socket(zmq.DEALER)
    apply_client(storm, served.curve(keys))
    storm.connect(served.address)
    answers = []
    for _ in range(HELLOS + 1):
        storm.send(wire.pack({"type": "hello", "versions": [99], "download_window": 0}))
        assert storm.poll(30_000)
        answers.append(wire.unpack(storm.recv())["error"]["message"])
    context.destroy(linger=0)
    assert "protocol version 3" in answers[0] and "too many hellos within a minute" in answers[-1]
    credentials = Credentials(keys=keys, server_key=served.device.public)
    with pytest.raises(SetupError, match="too many hellos within a minute"):
        connect(served.address, credentials=credentials)
    others = Credentials(keys=served.clients["bob"], server_key=served.device.public)
    assert works(connect(served.address, credentials=others))


def test_a_key_that_was_taken_out_opens_no_session_on_a_connection_it_has(served: Served) -> None:
    gone = make_pair("gone")
    admit(served.folder / "clients", "gone", gone.public)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        control = context.socket(zmq.DEALER)
        apply_client(control, served.curve(gone))
        control.connect(served.address)
        hello = wire.pack({"type": "hello", "versions": [wire.VERSION], "download_window": 1 << 20})
        control.send(hello)
        assert control.poll(30_000)
        assert wire.unpack(control.recv())["type"] == "welcome"
        take_out(served.folder / "clients", gone.public)
        while True:
            assert control.poll(30_000)
            said = wire.unpack(control.recv())
            if said["type"] == "event":
                break
        assert "its key was taken out" in said["error"]["message"]
        control.send(hello)
        assert control.poll(30_000)
        said = wire.unpack(control.recv())
        assert said["type"] == "refused" and "not admitted any more" in said["error"]["message"]
    finally:
        context.destroy(linger=0)
