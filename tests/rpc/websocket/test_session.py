"""A session over WebSocket does what one over any other binding does."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from tapml_rpc.remote import RemoteTensor
from tapml_rpc.session import Session
from tapml_rpc.supervisor.websocket_front import HELLO_SECONDS
from tapml_rpc.websocket.opening import open_websocket
from tapml_rpc.welcome import DOWNLOAD_WINDOW
from tapml_targets.errors import InputError, RemoteError
from tests.rpc.libraries import BUSY, add_one_library, launch_often
from tests.rpc.websocket.peers import WebSocketPeer
from tests.rpc.websocket.serving import WebSocketServer


@pytest.mark.parametrize("nbytes", [1, 4096, 70_001, (2 << 20) + 3, DOWNLOAD_WINDOW + (3 << 20)])
def test_bytes_come_back_as_they_went(session: Session, nbytes: int) -> None:
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)
    buffer = session.allocate(nbytes)
    session.write(buffer, data)
    assert bytes(session.read(buffer)) == data.tobytes()
    session.free(buffer)


def test_results_of_one_batch_stay_while_later_ones_come(session: Session) -> None:
    buffer = session.allocate(8)
    results = []
    for value in range(4):
        with session.batch() as batch:
            batch.write(buffer, bytes([value] * 8))
            results.append(batch.read(buffer))
    assert [bytes(result.result()) for result in results] == [bytes([v] * 8) for v in range(4)]


def test_an_operator_runs(session: Session) -> None:
    library = session.upload(add_one_library())
    with session.batch() as batch:
        buffers = [batch.allocate(256) for _ in range(2)]
        batch.write(buffers[0], np.arange(64, dtype=np.float32))
        tensors = [RemoteTensor(buffer, 0, (64,), "float32") for buffer in buffers]
        batch.call(library, "add_one", tensors)
        output = batch.read(buffers[1])
    assert np.array_equal(np.frombuffer(output.result(), np.float32), np.arange(1, 65))


def test_a_program_runs_and_its_long_read_is_streamed(session: Session) -> None:
    buffer = session.allocate(5 << 20)
    with session.program("step") as step:
        step.fill(buffer, b"ab")
        step.write(buffer, 4, step.argument())
        step.read(buffer, 8)
        step.read(buffer)
    short, whole = session.execute(step, b"tape", arguments=[2])
    assert bytes(short) == b"abtapeab"
    assert bytes(whole) == b"abtape" + b"ab" * ((5 << 19) - 3)


def test_a_header_longer_than_a_frame_arrives(session: Session) -> None:
    buffer = session.allocate(300)
    with session.program("long") as program:
        for number in range(1000):
            program.fill(buffer, number.to_bytes(2, "little") * 150)
        program.read(buffer)
    (filled,) = session.execute(program)
    assert bytes(filled) == (999).to_bytes(2, "little") * 150


def test_an_error_poisons_the_stream_until_reset(session: Session) -> None:
    session._add(["fill", 999_999, 0, 4, b"x"])
    with pytest.raises(InputError, match="no buffer has the handle 999999"):
        session.fence()
    with pytest.raises(InputError, match="999999"):
        session.fence()
    session.reset()
    session.fence()


def test_what_is_cancelled_before_it_starts_is_skipped(session: Session) -> None:
    buffer = session.allocate(1 << 20)
    for _ in range(200):
        session.fill(buffer, b"\x01")
    session._queue.flush()
    session.cancel()
    try:
        session.fence()
    except RemoteError as error:
        assert "cancelled" in str(error)
    session.reset()
    session.fence()


def test_a_session_may_be_silent_before_its_first_command(server: WebSocketServer) -> None:
    with Session(open_websocket(server.address, timeout=20)) as session:
        # What a host does meanwhile: compile.
        time.sleep(HELLO_SECONDS + 0.5)
        session.fence()


def test_two_sessions_do_not_see_each_other(server: WebSocketServer, session: Session) -> None:
    mine = session.allocate(1 << 20)
    with Session(open_websocket(server.address, timeout=20)) as other:
        theirs = other.allocate(1 << 20)
        done = threading.Event()

        def write_many() -> None:
            for value in range(8):
                other.write(theirs, bytes([value]) * (1 << 20))
            done.set()

        writer = threading.Thread(target=write_many)
        writer.start()
        for value in range(8):
            session.write(mine, bytes([100 + value]) * (1 << 20))
            assert bytes(session.read(mine)) == bytes([100 + value]) * (1 << 20)
        writer.join()
        assert done.is_set() and bytes(other.read(theirs, 16)) == bytes([7]) * 16


def test_payloads_that_wait_for_a_turn_stay_as_they_came(
    server: WebSocketServer, session: Session
) -> None:
    data = np.random.default_rng(20240229).integers(0, 256, 12 << 20, dtype=np.uint8)
    buffer = session.allocate(data.nbytes)
    with Session(open_websocket(server.address, timeout=20)) as other:
        launch_often(other, BUSY, 1)
        other.fence()
        # The other has work under way until the fence: more than a turn's worth waits for it.
        launch_often(other, BUSY, 130)
        other._add(["fence"])
        other._queue.flush()
        session.write(buffer, data)
        assert bytes(session.read(buffer)) == data.tobytes()
        other.fence()
    session.free(buffer)


def test_a_closed_session_frees_what_it_held(
    server: WebSocketServer, session: Session, peer: WebSocketPeer
) -> None:
    # Once those of earlier tests have ended.
    peer.wait_for(sessions=2)
    with Session(open_websocket(server.address, timeout=20)) as other:
        other.fence()
        assert peer.ping()["sessions"] == 3
    peer.wait_for(sessions=2)
    with pytest.raises(InputError, match="closed"):
        other.fence()


def test_a_client_without_credit_gets_no_more_than_it_asked_for(peer: WebSocketPeer) -> None:
    peer.batch(["allocate", 1, 24 << 20], ["fill", 1, 0, 24 << 20, b"\x05"])
    peer.post(["read", 1, 0, 24 << 20])
    received = 0
    while received < 8 << 20:
        header, chunk = peer.receive()
        assert (header["type"], header["offset"]) == ("data", received)
        received += len(chunk)
    assert received == 8 << 20
    with pytest.raises(TimeoutError):
        peer.data.recv(0.2)
    peer.send({"type": "credit", "bytes": 16 << 20})
    while (header := peer.receive()[0])["type"] == "data":
        pass
    assert header["results"] == [[0, 24 << 20]]


def test_a_message_in_fragments_is_one_message(peer: WebSocketPeer) -> None:
    from tapml_rpc import wire
    from tapml_rpc.websocket import frames

    header = {
        "type": "batch",
        "session": peer.welcome["session"],
        "epoch": peer.welcome["epoch"],
        "sequence": 1,
        "commands": [["allocate", 1, 8], ["write", 1, 0, 8, 0], ["read", 1, 0, 8]],
    }
    whole = frames.join(wire.pack(header), b"fragment")
    peer.data.send(whole[start : start + 7] for start in range(0, len(whole), 7))
    answer, chunk = peer.receive()
    assert (answer["results"], chunk) == ([[2, [0, 8]]], b"fragment")
