"""The hub: a lease lets in as long as it lasts, and a session's end is announced each time."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from typing import Any, cast

import pytest

from tapml.cli.secrets import make_pair
from tapml_rpc import wire
from tapml_rpc.flow import Forwarder
from tapml_rpc.supervisor import websocket_front
from tapml_rpc.supervisor.clients import Client, Clients
from tapml_rpc.supervisor.hub import Hub
from tapml_rpc.supervisor.options import SupervisorOptions
from tapml_rpc.supervisor.relay import Relay, Work
from tapml_rpc.supervisor.worker_process import NoWorkerYetError, Start, WorkerPool, WorkerProcess
from tapml_rpc.tracker.lent import HeldLease
from tapml_rpc.websocket.admission import LeaseGuard
from tapml_rpc.websocket.frames import CONTROL_PATH, join
from tapml_targets import template
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import DeviceLostError, ProtocolError, SetupError
from tapml_targets.limits import Limits
from tests.rpc.blobs.contents import digest_of
from tests.rpc.websocket.one_token import OneToken
from tests.rpc.websocket.peers import open_connection, receive

# Nothing here waits for a worker to open it.
DEVICE = DeviceDescription("opencl", 0, "none", "none", "cpu", "0", Limits())
MEBIBYTE = 1 << 20
ADA = HeldLease("1", "ada's token", identity="ada", label="ada@blobs")
BOB = HeldLease("2", "bob's token", identity="bob", label="bob@blobs")
HELLO: wire.Header = {"type": "hello", "versions": [wire.VERSION], "download_window": 1 << 20}


class Told:
    """A channel that keeps what a client would read."""

    def __init__(self) -> None:
        self.control: list[wire.Header] = []
        self.data: list[wire.Header] = []

    def send_control(self, packed: bytes) -> bool:
        self.control.append(wire.unpack(packed))
        return True

    def send_data(
        self,
        packed: bytes,
        parts: Sequence[memoryview | bytes],
        sent: Callable[[], None] | None = None,
    ) -> bool:
        self.data.append(wire.unpack(packed))
        return True


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub(DEVICE, SupervisorOptions())
    yield hub
    for relay in list(hub._relays.values()):
        relay.end("the test is over", kill=True)
    hub.close()


def taken(pool: WorkerPool, identity: str = "") -> WorkerProcess:
    """A worker of a pool, once it has been started."""
    start: Start | None = None
    while True:
        try:
            return pool.take(identity, start)
        except NoWorkerYetError as error:
            start = error.start
            start.exception()


def enter(hub: Hub, hello: wire.Header, channel: Told, identity: str) -> tuple[Relay, wire.Header]:
    """A session with a worker that has been started."""
    with suppress(NoWorkerYetError):
        return hub.hello(hello, channel, identity)
    hub._pool.prepare().result()
    return hub.hello(hello, channel, identity)


def admit(hub: Hub, token: str) -> str:
    """The identity a connection with a token is given."""
    return LeaseGuard(hub.holder, OneToken("the device's own")).check(token, "127.0.0.1")


def test_a_server_that_is_stopped_waits_for_no_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "_command", lambda module: ["sh", "-c", "exec sleep 60"])
    hub = Hub(DEVICE, SupervisorOptions())
    began = time.monotonic()
    assert not hub.start(lambda: hub._pool._template._process is not None)
    hub.close()
    # The template would be waited for for half a minute.
    assert time.monotonic() - began < 10


def test_who_was_let_in_by_a_lease_is_in_no_session_without_it(hub: Hub) -> None:
    hub.lend(ADA)
    with pytest.raises(SetupError, match="names no lease"):
        hub.hello(HELLO, Told(), admit(hub, ADA.token))
    assert not hub.load()["sessions"]
    assert ADA.token not in repr(ADA)


@pytest.mark.parametrize("presented", ["", ADA.token])
def test_a_lease_that_ends_before_the_hello_opens_nothing(hub: Hub, presented: str) -> None:
    hub.lend(ADA)
    identity = admit(hub, ADA.token)
    hub.take_back(ADA.id)
    with pytest.raises(SetupError, match=r"names no lease|is over"):
        hub.hello(HELLO | {"lease": presented}, Told(), identity)
    hub.lend(HeldLease("3", "cyd's token", identity="cyd", label="cyd@blobs"))


def test_a_lease_is_not_lent_on_to_another_holders_connection(hub: Hub) -> None:
    hub.lend(ADA)
    hub.lend(BOB)
    with pytest.raises(SetupError, match="another holder's lease"):
        hub.hello(HELLO | {"lease": BOB.token}, Told(), admit(hub, ADA.token))


def test_a_lease_can_be_joined_only_by_the_key_that_holds_it(hub: Hub) -> None:
    own, other = make_pair("own").public, make_pair("other").public
    hello = HELLO | {"lease": "a token"}
    hub.lend(HeldLease("1", "a token", identity=own, label="ada@blobs"))
    with pytest.raises(SetupError, match="belongs to another key"):
        hub.hello(hello, Told(), other)
    relay, _ = enter(hub, hello, Told(), own)
    assert relay.lease == "1"


@pytest.mark.parametrize(("holder", "comes_as"), [("token:9f86d081", "key"), ("key", "loopback")])
def test_identities_of_different_kinds_are_not_compared(
    hub: Hub, holder: str, comes_as: str
) -> None:
    key = make_pair("own").public
    holder, comes_as = (key if each == "key" else each for each in (holder, comes_as))
    hub.lend(HeldLease("1", "a token", identity=holder, label="ada@blobs"))
    relay, _ = enter(hub, HELLO | {"lease": "a token"}, Told(), comes_as)
    assert relay.lease == "1"


@pytest.mark.parametrize(
    ("kept", "library", "blobs"),
    [
        (0, 48 * MEBIBYTE, 48 * MEBIBYTE),
        (256 * MEBIBYTE, 192 * MEBIBYTE, 192 * MEBIBYTE),
        (1024 * MEBIBYTE, 256 * MEBIBYTE, 512 * MEBIBYTE),
    ],
)
def test_a_session_has_room_for_any_library_it_is_told_of_and_leaves_some(
    kept: int, library: int, blobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tapml_rpc.blobs.store.usable_bytes", lambda: 0)
    # The memory that a session may have on the device bounds its weights, and no Library.
    for device_bytes, most in ((0, blobs), (MEBIBYTE, library)):
        hub = Hub(DEVICE, SupervisorOptions(blob_bytes=kept, session_bytes=device_bytes))
        assert (hub.bounds.library_bytes, hub._blob_bound) == (library, most)
        hub.close()


def test_a_session_belongs_to_the_lease_that_let_it_in(hub: Hub) -> None:
    hub.lend(ADA)
    relay, _ = enter(hub, HELLO | {"lease": ADA.token}, Told(), admit(hub, ADA.token))
    assert relay.lease == ADA.id


def test_each_who_asks_for_a_session_that_has_ended_gets_an_error_of_its_own(hub: Hub) -> None:
    relay, _ = enter(hub, HELLO, Told(), "ada")
    relay.revoke("somebody wants the device")
    relay.check(time.monotonic())
    first, second = hub.lost(relay.token, "ada"), hub.lost(relay.token, "ada")
    assert first is not second
    assert type(first) is type(second) is DeviceLostError
    assert str(first) == str(second) == "this session was ended: somebody wants the device"
    assert "wants" not in str(hub.lost(relay.token, "bob"))


def test_a_session_that_ended_untold_is_said_to_have_ended(hub: Hub) -> None:
    relay, _ = enter(hub, HELLO, Told(), "ada")
    relay.end("closed by the client")
    assert str(hub.lost(relay.token, "ada")) == "the session has ended: closed by the client"


def test_the_next_worker_is_started_beside_the_front(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    start = WorkerProcess.__init__

    def noted(worker: WorkerProcess, *given: Any, **named: Any) -> None:
        started.append(threading.get_ident())
        start(worker, *given, **named)

    monkeypatch.setattr(WorkerProcess, "__init__", noted)
    hub.refill()
    relay, _ = enter(hub, HELLO, Told(), "ada")
    hub.refill()
    assert relay.pid and len(started) >= 1 and threading.get_ident() not in started


def test_a_hello_that_finds_no_worker_waits_beside_the_front(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_start, start, greeted = threading.Event(), WorkerProcess.__init__, list[int]()
    enter(hub, HELLO, Told(), "ada")

    def slow(worker: WorkerProcess, *given: Any, **named: Any) -> None:
        assert may_start.wait(60)
        start(worker, *given, **named)

    monkeypatch.setattr(WorkerProcess, "__init__", slow)
    forwarder = Forwarder()
    clients = Clients[Client](hub, forwarder, lambda client, why: None)

    def greet(waited: Start | None = None) -> None:
        if clients.greet(HELLO, cast(Client, Told()), "ada", "", greet, waited):
            greeted.append(threading.get_ident())

    def wait() -> list[int]:
        greet()
        while not greeted:
            forwarder.step(60)
        return [greeted.pop()]

    # The spare one is being started, has been killed, or has failed to start earlier.
    greet()
    forwarder.step(0)
    assert not greeted
    may_start.set()
    while not greeted:
        forwarder.step(60)
    assert [greeted.pop()] == [threading.get_ident()]
    os.kill(hub._pool.prepare().result().pid, signal.SIGKILL)
    assert wait() == [threading.get_ident()]
    with monkeypatch.context() as failing:
        failing.setattr(WorkerProcess, "__init__", lambda worker, *given, **named: 1 // 0)
        hub._pool._take_spare()
        assert hub._pool.prepare().exception()
        # A start that a client has waited for and that fails is that client's answer.
        with pytest.raises(ZeroDivisionError):
            wait()
    assert wait() == [threading.get_ident()]
    for client in clients:
        clients.drop(client, "the test is over", kill=True)
    forwarder.close()


def test_a_hello_over_websocket_is_not_missed_while_its_worker_is_started(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_start, start = threading.Event(), WorkerProcess.__init__

    def slow(worker: WorkerProcess, *given: Any, **named: Any) -> None:
        assert may_start.wait(60)
        start(worker, *given, **named)

    monkeypatch.setattr(WorkerProcess, "__init__", slow)
    monkeypatch.setattr(websocket_front, "HELLO_SECONDS", 0.1)
    front = websocket_front.WebSocketFront(hub, "127.0.0.1", 0)
    with closing(front), open_connection(front.address + CONTROL_PATH) as connection:
        connection.send(join(wire.pack(HELLO)))
        with pytest.raises(TimeoutError):
            connection.recv(0.3)
        may_start.set()
        assert receive(connection)[0]["type"] == "welcome"


def put_message(hub: Hub, offset: int, sequence: int = 1) -> wire.Header:
    """A byte of a blob of two."""
    fields = {"operation": "put", "digest": digest_of(b"xy"), "total": 2, "offset": offset}
    return {"type": "blob", "epoch": hub.epoch, "sequence": sequence, **fields}


def test_what_waits_is_not_done_on_the_fronts_thread(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hashing a piece of a blob takes milliseconds, the end of a worker up to a second."""
    channel, later, forwarded = Told(), deque[Work](), list[bytes]()
    relay, _ = enter(hub, HELLO, channel, "ada")
    relay.background = later.append
    monkeypatch.setattr(relay._relayed, "forward", lambda packed, chunk: forwarded.append(packed))
    relay.accept(put_message(hub, 0), b"", memoryview(b"x"))
    batch: wire.Header = {"type": "batch", "epoch": hub.epoch, "sequence": 2, "commands": []}
    relay.accept(batch, b"batch", memoryview(b""))
    assert relay.control({"type": "ping", "sequence": 1}) and len(later) == 1
    assert not channel.data and not forwarded
    later.popleft()()()
    # What was sent behind it is forwarded behind it.
    assert channel.data == [{"type": "blob-done", "sequence": 1, "value": False}]
    assert not forwarded and hub.blobs.statistics().arriving_bytes
    later.popleft()()()
    assert forwarded == [b"batch"]
    os.kill(relay.pid, signal.SIGKILL)
    while not relay.losing:
        assert select.select([relay.fileno()], [], [], 60)[0]
        relay.readable()
    relay.readable()
    relay.check(time.monotonic())
    # Whatever is done meanwhile, its end is reported once, and the session holds nothing then.
    assert len(later) == 1 and not channel.control and not relay.ended
    relay.accept(put_message(hub, 1, 3), b"", memoryview(b"z"))
    later.popleft()()()
    assert relay.fileno() < 0 and "SIGKILL" in channel.control[-1]["error"]["message"]
    later.popleft()()()
    assert len(channel.data) == len(channel.control) == 1 and not later
    assert not hub.blobs.statistics().arriving_bytes


def test_a_session_ends_once_whose_client_is_found_gone_as_it_is_told(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, ended = Told(), list[str]()
    relay, _ = enter(hub, HELLO, channel, "ada")
    monkeypatch.setattr(relay, "_on_end", lambda relay: ended.append(relay.ended))
    monkeypatch.setattr(channel, "send_control", lambda packed: relay.give_up("it is gone"))
    relay.give_up("over its deadline", kill=True)
    assert ended == ["over its deadline"] and "deadline" in str(relay.loss)


def test_a_fault_behind_a_request_leaves_nothing_of_the_session(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    later = deque[Work]()
    relay, _ = enter(hub, HELLO, Told(), "ada")
    relay.background = later.append
    monkeypatch.setattr(relay, "_hand_over", lambda *arguments: 1 // 0)
    for offset in range(2):
        relay.accept(put_message(hub, 0, offset + 1), b"", memoryview(b"x"))
    relay.guarded(later.popleft()())
    relay.guarded(later.popleft()())
    assert "its relay failed" in relay.ended and "ZeroDivisionError" in capsys.readouterr().err
    assert not hub.blobs.statistics().arriving_bytes and not later


def test_requests_that_wait_are_bounded(hub: Hub) -> None:
    relay, _ = enter(hub, HELLO, Told(), "ada")
    relay.background = lambda work: None
    chunk = memoryview(bytes(hub.bounds.upload_window // 2))
    for sequence in range(2):
        relay.accept(put_message(hub, 0, sequence), b"", chunk)
    with pytest.raises(ProtocolError, match="wait for an answer than may"):
        relay.accept(put_message(hub, 0, 2), b"", chunk)
