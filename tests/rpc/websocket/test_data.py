"""The data connection's end over WebSocket, as far as it is more than its stream."""

from __future__ import annotations

import socket

import pytest

from tapml_rpc import wire
from tapml_rpc.websocket import frames
from tapml_rpc.websocket.opening import WebSocketData
from tapml_rpc.websocket.stream import Stream
from tapml_targets.errors import ProtocolError


def test_after_a_message_that_is_none_nothing_more_can_be_told_apart() -> None:
    server, client = socket.socketpair()
    client.setblocking(False)
    with server, client:
        data = WebSocketData(Stream(client))
        whole = frames.join(wire.pack({"type": "pong"}), b"12345678")
        server.sendall(bytes([0x82, len(whole)]) + whole)
        message = data.receive(1000)
        assert message is not None
        assert wire.unpack(message[0]) == {"type": "pong"}
        assert bytes(message[1]) == b"12345678"
        assert not data.torn
        # A header longer than the message.
        server.sendall(b"\x82\x05\xff\x00\x00\x00x")
        with pytest.raises(ProtocolError):
            data.receive(1000)
        assert data.torn
