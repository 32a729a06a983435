"""The golden vectors of a tracker: our bytes, and what a real tracker makes of them."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tapml_rpc import wire
from tapml_rpc.tunnel import ticket
from tests.rpc.test_golden import from_json
from tests.rpc.tracker.trackers import PATIENCE_SECONDS, RawPeer, TrackerProcess

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "tracker.json").read_text("utf-8"))
MESSAGES: list[dict[str, Any]] = GOLDEN["messages"]
RELAY: dict[str, str] = GOLDEN["relay"]
# What a tracker draws: the vectors' values stand for these.
DRAWN = ("lease", "token", "stream", "relay_port")


def head_of(stream: socket.socket) -> str:
    """An HTTP response without its body."""
    data = b""
    while not data.endswith(b"\r\n\r\n") and (byte := stream.recv(1)):
        data += byte
    return data.decode("ascii")


class Conversation:
    """A device and a client that say the vectors, and hear what the vectors say they hear."""

    def __init__(self, tracker: TrackerProcess, device: RawPeer, client: RawPeer) -> None:
        self._tracker = tracker
        self._peers = {"device": device, "client": client}
        self.drawn: dict[Any, Any] = {}

    def step(self, message: dict[str, Any]) -> None:
        """Say a vector, or hear it."""
        header = from_json(message["header"])
        if message["receiver"] == "tracker":
            self._peers[message["sender"]].send(**self._known(header))
            return
        heard = self._peers[message["receiver"]].receive(header["type"])
        for name in DRAWN:
            if name in header:
                self.drawn.setdefault(header[name], heard[name])
        if "error" in header:
            assert heard["error"]["kind"] == header["error"]["kind"]
            header["error"] = heard["error"]
        self._compare(self._known(header), heard, message["name"])

    def connect(self, asks: str) -> socket.socket:
        """Ask the relay for something, in a vector's words."""
        request = RELAY[asks]
        drawn = {**self.drawn, RELAY["ticket"]: ticket(self.drawn[RELAY["token"]])}
        for vector, known in drawn.items():
            if isinstance(vector, str):
                request = request.replace(vector, known)
        port = self._tracker.relay_port
        stream = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
        stream.sendall(request.encode("ascii"))
        return stream

    def _known(self, value: Any) -> Any:
        """A vector's value with what this tracker has drawn."""
        if isinstance(value, dict):
            return {key: self._known(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._known(each) for each in value]
        return self.drawn.get(value, value) if isinstance(value, str) else value

    def _compare(self, expected: Any, heard: Any, where: str) -> None:
        """What a vector has is there; what it has not may be."""
        if isinstance(expected, dict):
            assert expected.keys() <= heard.keys(), where
            for key in expected.keys() - {"relay_port"}:
                self._compare(expected[key], heard[key], f"{where}: {key}")
        elif isinstance(expected, list):
            assert len(expected) == len(heard), where
            for each, found in zip(expected, heard, strict=True):
                self._compare(each, found, where)
        else:
            assert expected == heard, where


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message["name"])
def test_a_vector_is_what_we_write_and_read(message: dict[str, Any]) -> None:
    header, frame = from_json(message["header"]), bytes.fromhex(message["frame"])
    assert wire.pack(header) == frame
    assert wire.unpack(frame) == header


def test_a_tracker_answers_the_vectors_with_the_vectors(shared_tracker: TrackerProcess) -> None:
    with RawPeer(shared_tracker.address) as device, RawPeer(shared_tracker.address) as client:
        conversation = Conversation(shared_tracker, device, client)
        near = None
        for message in MESSAGES:
            if message.get("form_alone"):
                continue
            if message["name"] == "dial":
                near = conversation.connect("the client asks")
            conversation.step(message)
            if message["name"] == "dial":
                assert near is not None
                with near, conversation.connect("the device asks") as far:
                    for end in (near, far):
                        assert head_of(end).startswith(RELAY["success"])
                    near.sendall(b"there")
                    far.sendall(b"back!")
                    assert far.recv(5) == b"there"
                    assert near.recv(5) == b"back!"
        # The lease is over.
        with conversation.connect("the client asks") as late:
            assert head_of(late).startswith(RELAY["no such lease"])


def test_a_ticket_is_computed_as_the_vector_says() -> None:
    assert ticket(RELAY["token"]) == RELAY["ticket"]
