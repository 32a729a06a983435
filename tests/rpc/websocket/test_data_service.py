"""What a data connection brings is taken for its own session, or answered by what is wrong."""

from __future__ import annotations

import contextlib

import pytest
from websockets.exceptions import ConnectionClosed

from tapml_rpc import wire
from tapml_rpc.websocket import frames
from tests.rpc.websocket.peers import WebSocketPeer, open_connection, receive
from tests.rpc.websocket.serving import WebSocketServer


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
        with pytest.raises(ConnectionClosed, match="has not named its session"):
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
    assert "over another connection" in answer["error"]["message"]
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
