"""The golden vectors of PROTOCOL.md: our bytes, and what a real server makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tapml_rpc import wire
from tests.rpc.peers import RawPeer, ServerProcess

GOLDEN = json.loads((Path(__file__).parent / "golden" / "messages.json").read_text("utf-8"))
MESSAGES: list[dict[str, Any]] = GOLDEN["messages"]
# They name what no server has, or end the session.
FORM_ALONE = {
    "answer to a load",
    "answer to a timed call with a damaged workspace",
    "call",
    "goodbye",
    "load",
}
SESSION, EPOCH = bytes.fromhex(GOLDEN["session"]), bytes.fromhex(GOLDEN["epoch"])


def from_json(value: Any) -> Any:
    """The header a vector describes; byte strings are ``{"$bytes": hex}``."""
    if isinstance(value, dict):
        if set(value) == {"$bytes"}:
            return bytes.fromhex(value["$bytes"])
        return {key: from_json(inner) for key, inner in value.items()}
    return [from_json(inner) for inner in value] if isinstance(value, list) else value


def named(name: str) -> dict[str, Any]:
    return next(message for message in MESSAGES if message["name"] == name)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message["name"])
def test_a_vector_is_what_we_write_and_read(message: dict[str, Any]) -> None:
    header, frame = from_json(message["header"]), bytes.fromhex(message["frame"])
    assert wire.pack(header) == frame
    assert wire.unpack(frame) == header


def test_a_server_answers_the_vectors_with_the_vectors(peer: RawPeer) -> None:
    features = {"", *peer.welcome["features"]}
    spoken = [m for m in MESSAGES if m["socket"] == "data" and m["name"] not in FORM_ALONE]
    for message in (m for m in spoken if m.get("feature", "") in features):
        frame = bytes.fromhex(message["frame"])
        if message["sender"] == "client":
            # A session's token and the epoch are random: everything else goes as it is.
            frame = frame.replace(SESSION, peer.welcome["session"])
            frame = frame.replace(EPOCH, peer.welcome["epoch"])
            chunk = bytes.fromhex(message["chunk"])
            peer.send_frames([frame, chunk] if chunk else [frame])
            continue
        answer, chunk = peer.receive()
        expected = from_json(message["header"])
        if "error" in expected:
            _without_traceback(answer["error"])
        for result in expected.get("results", []):
            if isinstance(result[1], dict):
                _without_traceback(answer["results"][result[0]][1])
        assert answer == expected, message["name"]
        if message["chunk"]:
            assert chunk.hex() == message["chunk"], message["name"]
    answer, _ = peer.receive()
    assert (answer["type"], answer["sequence"]) == ("error", 7)
    assert answer["error"]["kind"] == "DeviceRestartedError"


def _without_traceback(error: dict[str, Any]) -> None:
    assert "Traceback" in error["traceback"]
    error["traceback"] = ""


def test_control_vectors_are_answered(peer: RawPeer) -> None:
    for name in ("cancel", "ping"):
        frame = bytes.fromhex(named(name)["frame"])
        peer.control.send(frame.replace(SESSION, peer.welcome["session"]))
    header = peer._receive(peer.control)[0]
    pong = from_json(named("pong while a command runs")["header"])
    assert header["type"] == "pong" and header["sequence"] == pong["sequence"]
    assert pong.keys() - header.keys() <= {"busy_seconds", "command"}


def test_a_welcome_has_what_the_vector_has(peer: RawPeer) -> None:
    vector = from_json(named("welcome")["header"])
    assert vector.keys() == peer.welcome.keys()
    assert vector["bounds"].keys() == peer.welcome["bounds"].keys()
    assert vector["device"].keys() == peer.welcome["device"].keys()
    assert vector["device"]["limits"].keys() == peer.welcome["device"]["limits"].keys()
    assert set(vector["features"]) - {"blobs"} == set(peer.welcome["features"]) - {"blobs"}


def test_a_hello_of_a_later_version_is_refused_as_the_vector_says(server: ServerProcess) -> None:
    hello = from_json(named("hello of a later version")["header"])
    with RawPeer(server.address, versions=hello["versions"]) as later:
        refused = from_json(named("refused")["header"])
        later.welcome["error"]["traceback"] = ""
        assert later.welcome == refused


def test_goodbye_frees_what_the_session_held(peer: RawPeer, server: ServerProcess) -> None:
    with RawPeer(server.address) as other:
        other.batch(["allocate", 1, 1 << 20])
        peer.wait_for(device_bytes=1 << 20)
        frame = bytes.fromhex(named("goodbye")["frame"])
        frame = frame.replace(SESSION, other.welcome["session"])
        other.send_frames([frame.replace(EPOCH, other.welcome["epoch"])])
        peer.wait_for(device_bytes=0)
