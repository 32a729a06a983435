"""Blobs over a real wire: a supervisor holds them, workers come and go."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scripts.processes import workers
from tapml_rpc import wire
from tapml_rpc.client import Session, connect
from tapml_rpc.transport import Ticket
from tapml_rpc.uploads import BlobWrite
from tapml_targets.errors import DeviceLostError
from tests.conftest import RequireDevice
from tests.rpc.blobs.contents import content, digest_of
from tests.rpc.blobs.joined import write_blob
from tests.rpc.faults.ground import exists, wait_for
from tests.rpc.libraries import add_one_library
from tests.rpc.peers import RawPeer, ServerProcess

MEBIBYTE = 1 << 20
WEIGHTS = [content(seed, 3 * MEBIBYTE + seed) for seed in range(4)]


@pytest.fixture(scope="module")
def supervisor(require_device: RequireDevice) -> Iterator[ServerProcess]:
    require_device("opencl")
    listening = ("--websocket", "ws://127.0.0.1:0")
    with ServerProcess(*listening) as process:
        yield process


@pytest.fixture(params=["address", "websocket"])
def address(request: pytest.FixtureRequest, supervisor: ServerProcess) -> str:
    """Where the supervisor is reached, over ZeroMQ and over WebSocket."""
    found: str = supervisor.line[request.param]
    return found


class Sent:
    """Bytes of chunks that a session sends."""

    def __init__(self, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nbytes = 0
        link = session._link
        for name in ("send", "request"):
            monkeypatch.setattr(link, name, self._counted(getattr(link, name)))

    def _counted(self, method: Callable[..., Ticket]) -> Callable[..., Ticket]:
        def counted(*arguments: Any) -> Ticket:
            ticket = method(*arguments)
            self.nbytes += ticket.chunk_bytes
            return ticket

        return counted


def write_weights(session: Session, weights: list[bytes]) -> list[bytes]:
    """What lies on the device afterwards."""
    buffers = [session.allocate(len(weight)) for weight in weights]
    session.write_blobs(map(BlobWrite, buffers, weights))
    return [bytes(session.read(buffer)) for buffer in buffers]


def test_messages_are_answered_as_the_protocol_says(supervisor: ServerProcess) -> None:
    data = content(99, 3000)
    digest = digest_of(data)
    with RawPeer(supervisor.address) as peer:
        assert wire.BLOBS in peer.welcome["features"]

        def ask(sequence: int, chunk: bytes | None = None, **fields: Any) -> dict[str, Any]:
            peer.send({"type": "blob", "sequence": sequence, **fields}, chunk)
            return peer.receive()[0]

        def done(sequence: int, value: object) -> dict[str, Any]:
            return {"type": "blob-done", "sequence": sequence, "value": value}

        put = {"operation": "put", "digest": digest, "total": 3000}
        assert ask(1, operation="holds", digests=[digest]) == done(1, [False])
        assert ask(2, operation="attach", digest=digest) == done(2, False)
        assert ask(3, data[:2000], **put, offset=0) == done(3, False)
        assert ask(4, data[2000:], **put, offset=2000) == done(4, True)
        assert ask(5, operation="attach", digest=digest) == done(5, True)
        peer.sequence = 5
        answer, chunk = peer.batch(
            ["allocate", 1, 100], ["paste", 1, 0, digest, 2900, 100], ["read", 1, 0, 100]
        )
        assert answer["results"] == [[2, [0, 100]]] and chunk == data[2900:]
        assert ask(7, operation="detach", digest=digest) == done(7, True)
        peer.sequence = 7
        answer, _ = peer.batch(["paste", 1, 0, digest, 0, 1])
        assert "is not attached" in answer["error"]["message"]
        answer = ask(9, operation="put", digest="../x", total=1, offset=0)
        assert (answer["type"], answer["sequence"]) == ("error", 9)
        assert answer["error"]["kind"] == "ProtocolError"


def test_a_second_session_on_the_same_weights_and_library_uploads_nothing(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another binding may be another identity, or the same.
    library = add_one_library(comment=address + "x" * 10_000)
    weights = [content(len(address) + seed, 3 * MEBIBYTE + seed) for seed in range(4)]
    sent = []
    for _ in range(2):
        with connect(address) as session:
            counter = Sent(session, monkeypatch)
            session.upload(library)
            assert write_weights(session, weights) == weights
            sent.append(counter.nbytes)
    assert sent[0] > sum(map(len, weights))
    assert sent[1] == 0


def kill_workers(supervisor: ServerProcess) -> None:
    """End the session's worker and the spare one, which starts later, and see them dead."""
    wait_for(lambda: len(workers(supervisor.process.pid)) >= 2)
    pids = workers(supervisor.process.pid)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any(map(exists, pids)))


def test_blobs_outlive_the_worker_of_the_session_that_sent_them(
    supervisor: ServerProcess, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(address) as session:
        write_weights(session, WEIGHTS)
        kill_workers(supervisor)
        with pytest.raises(DeviceLostError):
            session.read(session.allocate(8))
    with connect(address) as session:
        counter = Sent(session, monkeypatch)
        assert write_weights(session, WEIGHTS) == WEIGHTS
        assert counter.nbytes == 0


def test_a_blob_is_attached_while_more_commands_wait_than_a_socket_holds(
    supervisor: ServerProcess,
) -> None:
    with connect(supervisor.address) as session:
        busy, small = session.allocate(32 * MEBIBYTE), session.allocate(4096)
        for _ in range(20):
            session.fill(busy, b"\x01\x02\x03")
        for number in range(500):
            session.fill(small, bytes([number % 256]) * 4096)
        buffer = session.allocate(len(WEIGHTS[0]))
        write_blob(session, buffer, WEIGHTS[0])
        assert bytes(session.read(buffer)) == WEIGHTS[0]


@pytest.mark.usefixtures("supervisor")
def test_a_server_that_keeps_no_weights_says_so_and_takes_libraries() -> None:
    with (
        ServerProcess("--blob-bytes", "0") as server,
        connect(server.address) as session,
    ):
        assert session.upload(add_one_library()).operators == ("add_one",)
        weights = content(5, 1 << 20)
        assert write_weights(session, [weights]) == [weights]
        assert wire.BLOBS not in session._link.features
