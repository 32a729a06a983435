"""A control connection begins with a hello, of bounded length."""

from __future__ import annotations

import pytest
from websockets.exceptions import ConnectionClosed

from tapml_rpc import wire
from tapml_rpc.websocket import frames
from tests.rpc.websocket.peers import open_connection, receive
from tests.rpc.websocket.serving import WebSocketServer


def test_control_takes_what_a_hello_may_need_and_no_more(server: WebSocketServer) -> None:
    hello = {"type": "hello", "versions": [wire.VERSION], "download_window": 8 << 20}
    connection = open_connection(server.address + frames.CONTROL_PATH)
    padded = hello | {"padding": b"x" * (wire.MAX_STRANGER_BYTES - 200)}
    connection.send(frames.join(wire.pack(padded)))
    assert receive(connection)[0]["type"] == "welcome"
    with pytest.raises(ConnectionClosed, match="1009"):
        connection.send(bytes(wire.MAX_STRANGER_BYTES + 5))
        connection.recv(60)


def test_a_connection_that_says_no_hello_is_told_what_begins_one(server: WebSocketServer) -> None:
    connection = open_connection(server.address + frames.CONTROL_PATH)
    connection.send(frames.join(wire.pack({"type": "ping", "sequence": 1})))
    answer, _ = receive(connection)
    assert answer["type"] == "refused" and "begins with a hello" in answer["error"]["message"]
