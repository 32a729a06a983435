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

from tapml_rpc.link import Link
from tapml_rpc.session import Session
from tapml_rpc.websocket import frames
from tapml_rpc.websocket.opening import open_websocket
from tapml_rpc.websocket.stream import Stream
from tapml_targets.errors import DeviceLostError, InputError
from tests.conftest import RequireDevice
from tests.rpc.websocket.peers import WebSocketPeer, open_connection, receive
from tests.rpc.websocket.serving import WebSocketServer

NOTICE_SECONDS = 30.0


def test_a_connection_cut_in_the_middle_of_an_upload_ends_that_session_alone(
    server: WebSocketServer, session: Session, peer: WebSocketPeer
) -> None:
    with Session(open_websocket(server.address, timeout=60)) as other:
        link = other._link
        assert isinstance(link, Link) and isinstance(link._data, Stream)
        link.send([["allocate", 1, 2 << 20], ["write", 1, 0, 2 << 20, 0]], bytes(2 << 20))
        connection = link._data._socket
        # The first half of a message, and no more.
        connection.setblocking(True)
        connection.sendall(b"\x82\xff" + (2 << 20).to_bytes(8, "big") + bytes(4) + bytes(1 << 20))
        connection.setblocking(False)
        connection.shutdown(socket.SHUT_RDWR)
        with pytest.raises(DeviceLostError):
            other.fence()
    # The peer's and the shared one.
    peer.wait_for(sessions=2)
    assert peer.batch(["allocate", 77, 8], ["free", 77])[0]["type"] == "done"


def test_a_client_that_reads_nothing_is_ended(require_device: RequireDevice) -> None:
    require_device("opencl")
    with WebSocketServer("--stall", "1") as server, WebSocketPeer(server.address) as good:
        # Its own connection's reader would read: a socket that nobody reads from.
        lazy = WebSocketPeer(server.address, download_window=64 << 20)
        lazy.data.recv_messages.pause()
        lazy.post(["allocate", 1, 64 << 20], ["read", 1, 0, 64 << 20])
        deadline = time.monotonic() + 60
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
        peer.data.recv(60)


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
        connection.recv(60)


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
