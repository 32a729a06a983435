"""Payloads, features and ends, as PROTOCOL.md has them, on raw sockets over each binding."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import msgpack
import pytest

from tapml_targets.library_format import pack
from tests.rpc.conformance.clients import Client, EndError, WebSocketConnection
from tests.rpc.conformance.conftest import Connect
from tests.rpc.libraries import WRITES_TO_NOWHERE, add_one_library
from tests.rpc.peers import ServerProcess

MIB = 1 << 20


def streamed(client: Client, sequence: int, index: Any, nbytes: int) -> bytes:
    """Take a streamed read to its end, giving credit for each piece."""
    data = b""
    while len(data) < nbytes:
        header, chunk = client.data.receive()
        assert header == {"type": "data", "sequence": sequence, "index": index, "offset": len(data)}
        assert 0 < len(chunk) <= client.welcome["bounds"]["chunk_bytes"]
        data += chunk
        client.give_credit(len(chunk))
    return data


# Flow


def test_a_long_read_comes_in_pieces_of_a_bounded_size(client: Client) -> None:
    size = 5 * MIB + 3
    sequence = client.post(
        ["allocate", 1, size], ["fill", 1, 0, size, b"tapml"], ["read", 1, 0, size]
    )
    assert streamed(client, sequence, 2, size) == (b"tapml" * (size // 5 + 1))[:size]
    assert client.data.receive()[0]["results"] == [[2, size]]


def test_the_largest_chunk_is_taken(client: Client) -> None:
    size = client.welcome["bounds"]["chunk_bytes"]
    data = bytes(range(256)) * (size // 256)
    answer, _ = client.batch(["allocate", 1, size], ["write", 1, 0, size, 0], chunk=data)
    assert "error" not in answer
    sequence = client.post(["read", 1, 0, size])
    assert streamed(client, sequence, 0, size) == data
    client.data.receive()


def test_without_credit_nothing_more_comes_while_control_is_answered(connect: Connect) -> None:
    """Both credits, heartbeats and cancellation, around a read that waits for its client."""
    with connect(download_window=2 * MIB) as client:
        bounds = client.welcome["bounds"]
        size = 4 * MIB
        client.batch(["allocate", 1, size], ["fill", 1, 0, size, b"a"], ["allocate", 2, 8])
        waits = client.post(["read", 1, 0, size])
        header, piece = client.data.receive()
        assert (header["offset"], len(piece)) == (0, 2 * MIB)
        # A heartbeat does not wait behind it.
        assert client.ping()["answered"] == waits - 1
        # What is sent ahead is bounded, in bytes and in messages.
        chunks = bounds["upload_window"] // bounds["chunk_bytes"]
        payload = bytes(bounds["chunk_bytes"])
        ahead = [client.post(["fill", 2, 0, 8, b"b"], chunk=payload) for _ in range(chunks)]
        refused = client.post(["fence"], chunk=b"one more")
        answer, _ = client.data.receive()
        assert (answer["type"], answer["sequence"]) == ("error", refused)
        assert "bytes wait for an answer" in answer["error"]["message"]
        ahead += [client.post(["free", 2]) for _ in range(bounds["unanswered"] - chunks - 1)]
        refused = client.post(["fence"])
        answer, _ = client.data.receive()
        assert (answer["type"], answer["sequence"]) == ("error", refused)
        assert "wait for an answer; at most" in answer["error"]["message"]
        # Nor does cancellation: what has not begun is skipped.
        client.say("cancel", sequence=ahead[-1])
        assert client.ping()["answered"] == waits - 1
        client.give_credit(2 * MIB)
        header, piece = client.data.receive()
        assert (header["offset"], len(piece)) == (2 * MIB, 2 * MIB)
        assert client.data.receive()[0] == {
            "type": "done",
            "sequence": waits,
            "results": [[0, size]],
        }
        for sequence in ahead:
            answer, _ = client.data.receive()
            assert answer["sequence"] == sequence
            assert answer["error"]["kind"] == "RemoteError"
            assert "cancelled by the client" in answer["error"]["message"]
        assert client.batch(["reset"], ["fence"])[0]["results"] == [[1, True]]


def test_a_chunk_over_the_bound_ends_its_connection_and_no_other(
    connect: Connect, way: str, binding: str, shared: Client
) -> None:
    with connect() as client:
        bound = client.welcome["bounds"]["chunk_bytes"]
        assert client.batch(["fence"])[0]["type"] == "done"
        client.post(["fence"], chunk=bytes(bound + 1))
        answer, _ = client.data.receive()
        assert answer["type"] == "error" and f"of {bound + 1} bytes" in answer["error"]["message"]
        if binding != "zmq":
            # Somewhat more is taken, so that it can be refused; over that the connection ends.
            assert client.batch(["fence"])[0]["type"] == "done"
            client.post(["fence"], chunk=bytes(2 * bound + 1))
        with pytest.raises(EndError) as end:
            client.data.receive()
        if binding == "websocket":
            # A relay does not pass it on, and hangs up.
            assert end.value.code == (1001 if way == "relayed websocket" else 1009)
        else:
            event = client.hear()
            assert event["type"] == "event" and str(bound) in event["error"]["message"]
    assert shared.ping()["type"] == "pong"


# Features


def test_a_library_is_brought_by_its_hash_and_called(client: Client) -> None:
    packed = pack(add_one_library())
    digest, half = hashlib.sha256(packed).hexdigest(), len(packed) // 2
    answer, _ = client.batch(["load", 2, digest], ["fence"])
    assert answer["results"][0][1]["kind"] == "InputError" and answer["results"][1] == [1, True]
    for start, piece in ((0, packed[:half]), (half, packed[half:])):
        client.blob("put", piece, digest=digest, total=len(packed), offset=start)
    assert client.blob("attach", digest=digest)["value"] is True
    answer, _ = client.batch(["load", 2, digest])
    assert answer["results"] == [[0, [["add_one"], ["add_two"]]]]
    assert client.blob("detach", digest=digest)["value"] is True
    # Each window of 128 bytes holds one float.
    x, y = ([1, offset, [1], "float32"] for offset in (0, 128))
    answer, chunk = client.batch(
        ["allocate", 1, 256],
        ["fill", 1, 0, 4, struct.pack("<f", 40)],
        ["call", 2, "add_two", [x, y], {}, {}],
        ["read", 1, 128, 4],
        ["program", "back", [["call", 2, "add_one", [y, x], {}, {}]]],
        ["execute", "back", [], 0],
        ["call", 2, "add_one", [y, x], {}, {"timed": True}],
        ["read", 1, 0, 4],
    )
    assert struct.unpack("<f4xf", chunk) == (42, 43)
    assert [index for index, _ in answer["results"]] == [3, 6, 7]
    nanoseconds, damaged = answer["results"][1][1]
    assert nanoseconds > 0 and damaged == []
    client.batch(["unload", 2])
    error = client.batch(["execute", "back", [], 0])[0]["error"]
    assert "no Library has the handle 2" in error["message"]
    client.batch(["reset"], ["forget", "back"])
    assert "no Library has the handle 2" in str(client.batch(["call", 2, "add_one", [], {}, {}])[0])


def test_a_program_is_run_by_its_name(client: Client) -> None:
    step = [["write", 1, 0, 4, 0], ["read", 1, 0, {"argument": 0}], ["fence"]]
    answer, chunk = client.batch(
        ["allocate", 1, 8],
        ["program", "step", step],
        ["execute", "step", [4], 0],
        ["execute", "step", [2], 8],
        chunk=b"abcd\0\0\0\0efgh",
    )
    assert chunk == b"abcd\0\0\0\0ef"
    assert answer["results"] == [[[2, 1], [0, 4]], [[2, 2], True], [[3, 1], [8, 2]], [[3, 2], True]]
    error = client.batch(["execute", "step", [9], 0], chunk=b"ijkl")[0]["error"]
    assert (error["index"], error["program"], error["place"]) == (0, "step", 1)
    answer, _ = client.batch(["execute", "step", [1], 0], ["forget", "step"])
    assert answer["error"] == error and "results" not in answer
    answer, _ = client.batch(["reset"], ["execute", "step", [1], 0])
    assert "no program has the name 'step'" in answer["error"]["message"]


def test_a_long_read_of_a_program_says_where_it_belongs(client: Client) -> None:
    size = 3 * MIB
    sequence = client.post(
        ["allocate", 1, size],
        ["fill", 1, 0, size, b"b"],
        ["program", "long", [["fence"], ["read", 1, 0, size]]],
        ["execute", "long", [], 0],
        ["forget", "long"],
    )
    assert streamed(client, sequence, [3, 1], size) == b"b" * size
    assert client.data.receive()[0]["results"] == [[[3, 0], True], [[3, 1], size]]


def test_a_blob_is_put_once_attached_and_pasted(client: Client, binding: str) -> None:
    data = f"weights over {binding}".encode() * 100
    digest = hashlib.sha256(data).hexdigest()
    assert client.blob("holds", digests=[digest])["value"] == [False]
    whole = {"digest": digest, "total": len(data)}
    assert client.blob("put", data[:100], offset=0, **whole)["value"] is False
    assert client.blob("put", data[100:], offset=100, **whole)["value"] is True
    assert client.blob("attach", digest=digest)["value"] is True
    answer, chunk = client.batch(
        ["allocate", 1, 64], ["paste", 1, 8, digest, 3, 20], ["read", 1, 8, 20]
    )
    assert answer["results"] == [[2, [0, 20]]] and chunk == data[3:23]
    assert client.blob("detach", digest=digest)["value"] is True
    error = client.batch(["paste", 1, 8, digest, 3, 20])[0]["error"]
    assert "is not attached" in error["message"]
    wrong = client.blob("put", data, digest="0" * 64, total=len(data), offset=0)
    assert wrong["type"] == "error" and digest in wrong["error"]["message"]
    assert client.blob("holds", digests=[digest, "0" * 64])["value"] == [True, False]


def test_a_program_pastes_what_each_run_says_of_a_blob(client: Client, binding: str) -> None:
    data = f"rows over {binding}".encode() * 100
    digest = hashlib.sha256(data).hexdigest()
    bring = [["paste", 1, 4, digest, {"argument": 0}, {"argument": 1}], ["read", 1, 0, 16]]
    answer, _ = client.batch(
        ["allocate", 1, 16], ["fill", 1, 0, 16, b"."], ["program", "bring", bring]
    )
    assert "error" not in answer
    error = client.batch(["execute", "bring", [0, 8], 0])[0]["error"]
    assert "is not attached" in error["message"]
    assert (error["kind"], error["program"], error["place"]) == ("InputError", "bring", 0)
    client.batch(["reset"])
    whole = {"digest": digest, "total": len(data)}
    assert client.blob("put", data, offset=0, **whole)["value"] is True
    assert client.blob("attach", digest=digest)["value"] is True
    answer, chunk = client.batch(
        ["execute", "bring", [3, 7], 0], ["execute", "bring", [900, 12], 0]
    )
    assert answer["results"] == [[[0, 1], [0, 16]], [[1, 1], [16, 16]]]
    assert chunk == b"...." + data[3:10] + b"....." + b"...." + data[900:912]
    for run in ([len(data), 1], [0, 13]):
        error = client.batch(["execute", "bring", run, 0])[0]["error"]
        assert error["kind"] == "InputError" and "outside" in error["message"]
        client.batch(["reset"])
    assert client.blob("detach", digest=digest)["value"] is True


# The end


def test_a_device_that_dies_is_told_by_an_event(
    connect: Connect, binding: str, shared: Client
) -> None:
    packed = pack(add_one_library(WRITES_TO_NOWHERE))
    digest = hashlib.sha256(packed).hexdigest()
    x, y = ([1, offset, [1], "float32"] for offset in (0, 128))
    crash = [["fence"], ["call", 2, "add_one", [x, y], {}, {}], ["fence"]]
    with connect() as client:
        client.blob("put", packed, digest=digest, total=len(packed), offset=0)
        client.blob("attach", digest=digest)
        answer, _ = client.batch(
            ["load", 2, digest], ["allocate", 1, 256], ["program", "crash", crash]
        )
        assert "error" not in answer
        client.post(["execute", "crash", [], 0])
        event = client.hear()
        assert event["type"] == "event"
        assert event["error"]["kind"] == "DeviceRestartedError"
        message = event["error"]["message"]
        assert "execute('crash', [], 0), its command" in message and "SIG" in message
        if binding == "websocket":
            with pytest.raises(EndError) as end:
                client.hear()
            assert end.value.code == 1000
        else:
            assert "the worker of this session died" in client.ping()["error"]["message"]
    assert shared.ping()["type"] == "pong"


@pytest.mark.parametrize("where", ["control", "data"])
def test_goodbye_on_either_connection_frees_all(
    connect: Connect, binding: str, shared: Client, where: str
) -> None:
    before = shared.wait_for(sessions=1)["device_bytes"]
    with connect() as client:
        client.batch(["allocate", 1, 3 * MIB])
        assert shared.ping()["device_bytes"] == before + 3 * MIB
        if where == "control":
            client.say("goodbye")
        else:
            client.data.send(msgpack.packb({**client.own, "type": "goodbye"}))
        if binding == "websocket":
            # A probe may come before it, and is not answered.
            for receive in (client.data.receive, client.hear):
                with pytest.raises(EndError) as end:
                    receive()
                assert end.value.code == 1000 and "closed by the client" in str(end.value)
        else:
            # Each connection is in order by itself, and the session is over on both.
            for asked in ("control", "data") if where == "control" else ("data", "control"):
                answer = client.ping() if asked == "control" else client.ended()
                assert answer["type"] in ("refused", "error")
                assert answer["error"]["kind"] == "DeviceLostError"
                assert "closed by the client" in answer["error"]["message"]
    shared.wait_for(sessions=1, device_bytes=before)


@pytest.mark.parametrize("where", ["control", "data"])
def test_a_session_ends_with_either_of_its_connections_and_the_other_says_so(
    connect: Connect, binding: str, shared: Client, where: str
) -> None:
    client = connect()
    client.batch(["allocate", 1, 8])
    gone, left = client.control, client.data
    if where == "data":
        gone, left = left, gone
    gone.close()
    shared.wait_for(sessions=1)
    if where == "data":
        event = client.hear()
        assert event["type"] == "event"
        assert "its data connection is gone" in event["error"]["message"]
    elif binding != "websocket":
        answer = client.ended()
        assert answer["type"] == "error"
        assert "its control connection is gone" in answer["error"]["message"]
    if binding == "websocket":
        with pytest.raises(EndError) as end:
            left.receive()
        assert end.value.code == 1000
    left.close()


def test_a_session_of_nobody_is_refused(connect: Connect, binding: str, shared: Client) -> None:
    opened = shared.another()
    stranger = {"session": bytes(16), "epoch": shared.welcome["epoch"], "type": "batch"}
    opened.send(msgpack.packb({**stranger, "sequence": 1, "commands": []}))
    answer, _ = opened.receive()
    assert answer["error"]["kind"] == "DeviceLostError"
    if binding == "websocket":
        with pytest.raises(EndError) as end:
            opened.receive()
        assert end.value.code == 1008
    opened.close()


def test_text_is_no_message_of_a_websocket(served: ServerProcess) -> None:
    connection = WebSocketConnection(served.line["websocket"] + "/control")
    connection.send_frame(0x81, b"hello")
    with pytest.raises(EndError) as end:
        while True:
            assert connection.receive()[0]["type"] == "refused"
    assert end.value.code in (1003, 1008)
    connection.close()
