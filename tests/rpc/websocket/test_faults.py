"""Whatever is wrong with a WebSocket connection is its own session's affair, and is answered.

What befalls processes and links, over both bindings, is in tests/rpc/faults.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time

import pytest
from websockets.exceptions import ConnectionClosed

from tapml_rpc import wire
from tapml_rpc.session import Session
from tapml_rpc.websocket import frames
from tapml_rpc.websocket.transport import WebSocketTransport, open_websocket
from tapml_targets.errors import DeviceLostError, InputError
from tests.conftest import RequireDevice
from tests.rpc.websocket.peers import WebSocketPeer, open_connection, receive
from tests.rpc.websocket.serving import WebSocketServer

NOTICE_SECONDS = 30.0


def test_a_connection_cut_in_the_middle_of_an_upload_ends_that_session_alone(
    server: WebSocketServer, peer: WebSocketPeer
) -> None:
    others = peer.ping()["sessions"]
    with Session(open_websocket(server.address, timeout=60)) as session:
        transport = session._link
        assert isinstance(transport, WebSocketTransport)
        transport.send([["allocate", 1, 2 << 20], ["write", 1, 0, 2 << 20, 0]], bytes(2 << 20))
        connection = transport._data._socket
        # The first half of a message, and no more.
        connection.setblocking(True)
        connection.sendall(b"\x82\xff" + (2 << 20).to_bytes(8, "big") + bytes(4) + bytes(1 << 20))
        connection.setblocking(False)
        connection.shutdown(socket.SHUT_RDWR)
        with pytest.raises(DeviceLostError):
            session.fence()
    peer.wait_for(sessions=others)
    assert peer.batch(["allocate", 77, 8], ["free", 77])[0]["type"] == "done"


def test_a_client_that_reads_nothing_is_ended(require_device: RequireDevice) -> None:
    require_device("opencl")
    with WebSocketServer("--stall", "1") as server, WebSocketPeer(server.address) as good:
        # Its own connection's reader would read: a socket that nobody reads from.
        lazy = WebSocketPeer(server.address, download_window=64 << 20)
        lazy.data.recv_messages.pause()
        lazy.post(["allocate", 1, 64 << 20], ["read", 1, 0, 64 << 20])
        deadline = time.monotonic() + 30
        while good.ping()["sessions"] > 1:
            # It says that it is alive, and takes nothing.
            with contextlib.suppress(ConnectionClosed):
                lazy.ping()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with pytest.raises(ConnectionClosed, match="taken none of its data"):
            lazy.ping()
        lazy.data.recv_messages.resume()
        assert good.batch(["allocate", 1, 8])[0]["type"] == "done"


def test_a_message_over_the_bound_closes_the_connection_with_a_reason(
    server: WebSocketServer,
) -> None:
    with WebSocketPeer(server.address) as peer, pytest.raises(ConnectionClosed, match="1009"):
        peer.data.send(bytes(frames.MAX_MESSAGE_BYTES + 1))
        peer.data.recv(10)


def test_control_takes_what_a_hello_may_need_and_no_more(server: WebSocketServer) -> None:
    hello = {"type": "hello", "versions": [wire.VERSION], "download_window": 8 << 20}
    connection = open_connection(server.address + frames.CONTROL_PATH)
    padded = hello | {"padding": b"x" * (wire.MAX_STRANGER_BYTES - 200)}
    connection.send(frames.join(wire.pack(padded)))
    assert receive(connection)[0]["type"] == "welcome"
    with pytest.raises(ConnectionClosed, match="1009"):
        connection.send(bytes(wire.MAX_STRANGER_BYTES + 5))
        connection.recv(10)


def test_more_strangers_than_there_can_be_sessions_make_room_for_who_has_one(
    server: WebSocketServer, peer: WebSocketPeer
) -> None:
    peer.batch(["allocate", 78, 8])
    most = peer.welcome["bounds"]["sessions"]
    with contextlib.ExitStack() as stack:
        strangers = []
        for _ in range(most + 1):
            strangers.append(open_connection(server.address + frames.DATA_PATH))
            stack.callback(strangers[-1].close)
        with pytest.raises(ConnectionClosed, match="has not said whose it is"):
            strangers[0].recv(60)
        assert peer.batch(["free", 78])[0]["type"] == "done"
        with WebSocketPeer(server.address) as another:
            assert another.batch(["allocate", 1, 8])[0]["type"] == "done"


def test_a_chunk_over_the_bound_is_answered(peer: WebSocketPeer) -> None:
    header = {"type": "batch", "session": peer.welcome["session"], "commands": []}
    packed = wire.pack(header)
    gap = bytes(wire.aligned(4 + len(packed)) - 4 - len(packed))
    head = len(packed).to_bytes(4, "little") + packed + gap
    peer.data.send(head + bytes(wire.MAX_CHUNK_BYTES + 1))
    answer, _ = peer.receive()
    assert answer["error"]["kind"] == "ProtocolError"
    assert "a chunk of 4194305 bytes" in answer["error"]["message"]


@pytest.mark.parametrize("path", [frames.CONTROL_PATH, frames.DATA_PATH])
def test_a_text_message_is_told_that_messages_are_binary(
    server: WebSocketServer, path: str
) -> None:
    connection = open_connection(server.address + path)
    connection.send("hello")
    answer, _ = receive(connection)
    assert answer["error"]["kind"] == "ProtocolError"
    assert "messages are binary" in answer["error"]["message"]
    with pytest.raises(ConnectionClosed, match="messages are binary"):
        connection.recv(10)


def test_a_connection_that_says_no_hello_is_told_what_begins_one(server: WebSocketServer) -> None:
    connection = open_connection(server.address + frames.CONTROL_PATH)
    connection.send(frames.join(wire.pack({"type": "ping", "sequence": 1})))
    answer, _ = receive(connection)
    assert answer["type"] == "refused" and "begins with a hello" in answer["error"]["message"]


def test_a_bound_connection_takes_no_other_sessions_messages(
    server: WebSocketServer, peer: WebSocketPeer
) -> None:
    with WebSocketPeer(server.address) as other:
        other.batch(["allocate", 1, 8])
        peer.batch(["allocate", 1, 8])
        other.send(
            {"type": "batch", "sequence": 2, "commands": []} | {"session": peer.welcome["session"]}
        )
        answer, _ = other.receive()
        assert "belongs to another session" in answer["error"]["message"]
        assert answer["sequence"] == 2
        assert other.batch(["read", 1, 0, 8])[0]["type"] == "done"
    assert peer.batch(["read", 1, 0, 8])[0]["type"] == "done"


def test_a_session_has_one_data_connection(server: WebSocketServer, peer: WebSocketPeer) -> None:
    peer.batch(["allocate", 1, 8])
    thief = open_connection(server.address + frames.DATA_PATH)
    own = {"session": peer.welcome["session"], "epoch": peer.welcome["epoch"]}
    thief.send(frames.join(wire.pack({"type": "batch", "sequence": 9, "commands": [], **own})))
    answer, _ = receive(thief)
    assert "has its data connection already" in answer["error"]["message"]
    assert peer.batch(["read", 1, 0, 8])[0]["type"] == "done"


def test_an_unknown_session_is_lost_and_a_stale_epoch_is_another_life(
    server: WebSocketServer, peer: WebSocketPeer
) -> None:
    connection = open_connection(server.address + frames.DATA_PATH)
    message = {"type": "batch", "sequence": 3, "commands": [], "session": bytes(16)}
    connection.send(frames.join(wire.pack({**message, "epoch": peer.welcome["epoch"]})))
    answer, _ = receive(connection)
    assert (answer["error"]["kind"], answer["sequence"]) == ("DeviceLostError", 3)
    peer.send({"type": "batch", "sequence": 1, "commands": [], "epoch": bytes(8)})
    assert peer.receive()[0]["error"]["kind"] == "DeviceRestartedError"


def test_headers_that_are_none_are_answered_and_poison_nothing(peer: WebSocketPeer) -> None:
    peer.batch(["allocate", 1, 8])
    for message in (b"", b"\xff" * 40, frames.join(b"\xc1"), frames.join(wire.pack({}), b"chunk")):
        peer.data.send(message)
        answer, _ = peer.receive()
        assert (answer["type"], answer["error"]["kind"]) == ("error", "ProtocolError")
    assert peer.batch(["read", 1, 0, 8])[0]["type"] == "done"


def test_a_forked_child_cannot_use_the_session_and_does_not_end_it(session: Session) -> None:
    buffer = session.allocate(8)
    session.fence()
    child = os.fork()
    if not child:
        code = 1
        try:
            session._link.send([["fence"]], b"")
        except InputError:
            session.close()
            code = 0
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    session.write(buffer, b"12345678")
    assert bytes(session.read(buffer)) == b"12345678"
