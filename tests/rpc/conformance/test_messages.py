"""Hellos, batches and failures, as PROTOCOL.md has them, on raw sockets over each binding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tests.rpc.conformance.clients import Client, EndError
from tests.rpc.conformance.conftest import Connect
from tests.rpc.test_golden import FORM_ALONE

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "messages.json").read_text("utf-8"))
MIB = 1 << 20
BOUNDS = {
    "chunk_bytes",
    "commands",
    "unanswered",
    "upload_window",
    "download_window",
    "handles",
    "session_bytes",
    "library_bytes",
    "sessions",
    "programs",
    "program_commands",
    "program_bytes",
}


def refusal(client: Client, said: str, kind: str = "ProtocolError", **fields: Any) -> None:
    """Send a data message that is answered by an error; it poisons nothing."""
    client.data.send(msgpack.packb({**client.own, **fields}))
    answer, _ = client.data.receive()
    assert (answer["type"], answer["error"]["kind"]) == ("error", kind), answer
    assert said in answer["error"]["message"]
    assert answer.get("sequence") == fields.get("sequence")
    assert client.batch(["fence"])[0] == {
        "type": "done",
        "sequence": client.sequence,
        "results": [[0, True]],
    }


# Hello


@pytest.mark.usefixtures("connect")
def test_a_welcome_states_all_that_is_granted(shared: Client) -> None:
    welcome = shared.welcome
    assert welcome["type"] == "welcome" and welcome["version"] == 3
    assert set(welcome["features"]) <= {"blobs"}
    assert welcome["bounds"].keys() >= BOUNDS
    assert all(type(bound) is int and bound > 0 for bound in welcome["bounds"].values())
    assert (len(welcome["session"]), len(welcome["epoch"])) == (16, 8)
    assert welcome["device"]["platform"] in ("opencl", "webgpu")
    assert welcome["device"]["limits"]["max_buffer_bytes"] > 0
    assert welcome["kernel_deadline"] > 0 and welcome["silence_seconds"] > 0


@pytest.mark.parametrize(
    ("hello", "said"),
    [
        ({"versions": [99]}, "speaks protocol version 3, the client [99]"),
        ({"versions": "1"}, "versions must be an array"),
        ({"download_window": -1}, "download window must be an integer"),
        ({"download_window": True}, "download window must be an integer"),
        ({"type": "ping", "session": b"nobody's"}, ""),
    ],
)
def test_a_hello_that_cannot_be_taken_is_refused_in_words(
    connect: Connect, binding: str, hello: dict[str, Any], said: str
) -> None:
    with connect(**hello) as client:
        assert client.welcome["type"] == "refused"
        assert said in client.welcome["error"]["message"] != ""
        if binding == "websocket":
            with pytest.raises(EndError) as end:
                client.control.receive()
            assert end.value.code == 1008 and said[:60] in str(end.value)


def test_a_connection_has_one_session(connect: Connect, binding: str, shared: Client) -> None:
    """Another hello ends the former session, or is refused where a connection is for one alone."""
    shared.wait_for(sessions=1)
    with connect() as client:
        assert client.batch(["fence"])[0]["type"] == "done"
        hello = {"type": "hello", "versions": [3], "features": [], "download_window": 8 << 20}
        client.control.send(msgpack.packb({**hello, **client.lease}))
        answer = client.hear()
        if binding == "websocket":
            assert answer["type"] == "refused"
            assert client.batch(["fence"])[0]["type"] == "done"
            return
        assert answer["type"] == "welcome" and answer["session"] != client.welcome["session"]
        ended = client.ended()
        assert (ended["type"], ended["error"]["kind"]) == ("error", "DeviceLostError")
        assert "began another on the same connection" in ended["error"]["message"]
        client.welcome = answer
        assert client.ping()["type"] == "pong"
    shared.wait_for(sessions=1)


def test_a_session_has_one_data_connection(connect: Connect, binding: str) -> None:
    with connect() as client:
        assert client.batch(["fence"])[0]["type"] == "done"
        other = client.another()
        for message in (
            {"type": "batch", "sequence": client.sequence + 1, "commands": [["fence"]]},
            {"type": "credit", "bytes": 1},
            {"type": "goodbye"},
        ):
            other.send(msgpack.packb({**client.own, **message}))
            answer, _ = other.receive()
            assert (answer["type"], answer["error"]["kind"]) == ("error", "ProtocolError")
            assert "over another connection" in answer["error"]["message"]
            if binding == "websocket":
                with pytest.raises(EndError) as end:
                    other.receive()
                assert end.value.code == 1008
                break
        other.close()
        assert client.batch(["fence"])[0]["type"] == "done"


# Batches


def test_unknown_keys_are_ignored_everywhere(client: Client) -> None:
    commands = [["allocate", 1, 8], ["fill", 1, 0, 8, b"ab"]]
    answer, _ = client.batch(*commands, later=[{}], more=None)
    assert answer == {"type": "done", "sequence": client.sequence}
    pong = client.ping(later=1.5)
    assert pong["type"] == "pong" and pong["sequence"] == 1
    assert pong["answered"] == client.sequence
    assert pong["device_bytes"] >= 8 and pong["sessions"] >= 1


def test_payloads_come_and_go_at_multiples_of_eight(client: Client) -> None:
    answer, chunk = client.batch(
        ["allocate", 1, 32],
        ["write", 1, 0, 5, 0],
        ["write", 1, 8, 3, 8],
        ["copy", 1, 0, 1, 16, 5],
        ["fill", 1, 24, 5, b"xyz"],
        ["read", 1, 16, 5],
        ["read", 1, 8, 3],
        ["read", 1, 24, 5],
        chunk=b"hello\0\0\0abc",
    )
    assert answer["results"] == [[5, [0, 5]], [6, [8, 3]], [7, [16, 5]]]
    assert chunk == b"hello\0\0\0abc\0\0\0\0\0xyzxy"


def test_batches_are_sent_ahead_and_answered_in_their_order(client: Client) -> None:
    sent = [client.post(["fence"]) for _ in range(20)]
    answers = [client.data.receive()[0] for _ in sent]
    assert [answer["sequence"] for answer in answers] == sent


def test_a_batch_out_of_order_is_refused_and_disturbs_nothing(client: Client) -> None:
    for sequence in (client.sequence, 0):
        refusal(
            client,
            "sequence rises",
            type="batch",
            sequence=sequence,
            commands=[["reset"]],
        )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"commands": "fence"}, "commands must be an array"),
        ({"commands": [["fence"]] * 4097}, "at most 4096 elements"),
        ({"type": "later"}, "unknown message type 'later'"),
    ],
)
def test_a_malformed_message_is_refused_by_its_number(
    client: Client, fields: dict[str, Any], said: str
) -> None:
    client.sequence += 1
    refusal(client, said, **{"type": "batch", "sequence": client.sequence, **fields})


def test_a_stale_epoch_means_a_restarted_device(client: Client) -> None:
    refusal(
        client,
        "handles mean nothing here",
        "DeviceRestartedError",
        type="batch",
        sequence=client.sequence + 1,
        epoch=b"restart?",
        commands=[],
    )


def test_a_header_that_is_none_or_too_long_is_refused_in_words(client: Client) -> None:
    for packed in (b"\xc1", b"\x93\1\2\3", b"\x81\1\2", b"\xd4\5\0", b"\x81\xa1a\xc6" + bytes(MIB)):
        client.data.send(packed)
        answer, _ = client.data.receive()
        assert (answer["type"], answer["error"]["kind"]) == ("error", "ProtocolError")
        assert "header" in answer["error"]["message"]
    assert client.batch(["fence"])[0]["results"] == [[0, True]]


# Failure


def test_a_failure_poisons_its_session_until_reset_and_free_always_works(client: Client) -> None:
    client.batch(["allocate", 1, 8], ["fill", 1, 0, 8, b"a"])
    answer, chunk = client.batch(["read", 1, 0, 2], ["read", 1, 4, 8], ["fill", 1, 0, 8, b"b"])
    assert (answer["results"], chunk) == ([[0, [0, 2]]], b"aa")
    error = answer["error"]
    assert (error["kind"], error["index"], error["command"]) == ("InputError", 1, "read(1, 4, 8)")
    assert "Traceback" in error["traceback"]
    # Every answer says it again.
    assert client.batch(["fence"])[0]["error"] == error
    held = client.wait_for(sessions=1)["device_bytes"]
    answer, _ = client.batch(["free", 1], ["unload", 77], ["forget", "none"])
    assert answer["error"] == error and client.ping()["device_bytes"] == held - 8
    assert client.batch(["fence"], ["reset"], ["fence"])[0]["results"] == [[2, True]]


def test_a_command_of_the_wrong_form_poisons_as_any_other(client: Client) -> None:
    for command in (7, [], ["later"], ["read", 1], ["read", True, 0, 1], ["allocate", 1, -1]):
        answer, _ = client.batch(["reset"], command)
        assert answer["error"]["index"] == 1, command


def test_the_golden_conversation_is_answered_with_the_golden_answers(connect: Connect) -> None:
    session, epoch = bytes.fromhex(GOLDEN["session"]), bytes.fromhex(GOLDEN["epoch"])
    with connect() as client:
        for message in GOLDEN["messages"]:
            # What is kept of blobs outlives a session; they have a test of their own.
            if message["socket"] != "data" or "feature" in message or message["name"] in FORM_ALONE:
                continue
            frame, chunk = bytes.fromhex(message["frame"]), bytes.fromhex(message["chunk"])
            if message["sender"] == "client":
                frame = frame.replace(session, client.welcome["session"])
                client.data.send(frame.replace(epoch, client.welcome["epoch"]), chunk)
                continue
            answer, payload = client.data.receive()
            failures = [value for _, value in answer.get("results", []) if isinstance(value, dict)]
            for failure in (*failures, answer.get("error", {"traceback": ""})):
                failure["traceback"] = ""
            assert answer == msgpack.unpackb(frame), message["name"]
            assert payload == chunk or not chunk, message["name"]
        answer, _ = client.data.receive()
        assert answer["error"]["kind"] == "DeviceRestartedError"
