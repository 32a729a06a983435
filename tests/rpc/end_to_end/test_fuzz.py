"""Hundreds of lies to a real server, with a good client beside; scripts/fuzz_wire.py has more.

A failure prints its seed and conversations: the same command line says them again and shrinks them.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from scripts.wire_fuzz import peer
from scripts.wire_fuzz.campaign import Campaign, Settings, replay
from scripts.wire_fuzz.messages import OTHER_TOKEN, TOKEN, Names, Socket, sequence
from scripts.wire_fuzz.mutations import shots
from scripts.wire_fuzz.peer import Heard, Peer
from scripts.wire_fuzz.shrink import shrink
from tapml_rpc import wire
from tests.conftest import RequireDevice

FRAMES = 120
SEED = 20240229


# The other two are in `exhaustive`.
@pytest.mark.parametrize(("binding", "session"), [("zmq", True), ("websocket", False)])
def test_a_server_stands_and_serves_others_whatever_is_said_to_it(
    require_device: RequireDevice, binding: str, session: bool
) -> None:
    require_device("opencl")
    settings = Settings(FRAMES, SEED, binding, session, "opencl:0")
    report = Campaign(settings).run()
    assert not report.findings, report.findings
    assert report.frames >= FRAMES and report.good.operations > 10
    # Lies that nobody refuses were not heard.
    assert "ProtocolError" in report.heard.refusals and len(report.heard.refusals) > 1


def test_a_conversation_without_lies_is_refused_nothing(require_device: RequireDevice) -> None:
    require_device("opencl")
    honest = [
        said
        for said in (shots(SEED, index, blobs=False) for index in range(400))
        if all(shot.what.endswith(": valid") for shot in said)
    ]
    assert len(honest) > 5
    # What begins or ends a session is said by the replay itself. A cancel may overtake a batch.
    ends = ("goodbye", "hello", "cancel")
    spoken = [
        shot for said in honest for shot in said if not any(each in shot.what for each in ends)
    ][:50]
    heard = Heard()
    failure = replay(Settings(0, SEED, session=True, device="opencl:0"), spoken, heard)
    assert not failure and not heard.refusals, (failure, heard.last_error)
    assert heard.answers["done"] > 10


@dataclass
class SlowServer:
    """A wire to a server whose answers come one per look, None where it keeps silent."""

    answers: list[dict[str, object] | None]
    hellos: int = 0
    closed: bool = False

    def send(self, socket: Socket, frames: tuple[bytes, ...]) -> bool:
        self.hellos += wire.unpack(frames[0])["type"] == "hello"
        return True

    def receive(self, seconds: float) -> list[tuple[Socket, bytes]]:
        answer = self.answers.pop(0)
        return [] if answer is None else [("control", wire.pack(answer))]

    def open_data(self, address: str) -> None:
        pass

    def close(self) -> None:
        pass


REFUSED: dict[str, object] = {"type": "refused", "error": {"kind": "SetupError", "message": "full"}}


@pytest.mark.parametrize(("before", "hellos"), [([None] * 3, 1), ([None, REFUSED, None], 2)])
def test_a_hello_is_repeated_after_a_refusal_alone(
    before: list[dict[str, object] | None], hellos: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A connection's second hello ends the session of its first.
    monkeypatch.setattr(peer, "_AGAIN_SECONDS", 0.0)
    welcome = {"type": "welcome", "session": b"t", "epoch": b"e", "features": []}
    server = SlowServer([*before, {**welcome, "data_address": "tcp://a"}])
    assert Peer(lambda: server, Heard()).names.token == b"t"
    assert server.hellos == hellos


def test_a_seed_says_the_same_bytes_to_every_server() -> None:
    assert shots(SEED, 7, blobs=True) == shots(SEED, 7, blobs=True)
    assert shots(SEED, 7, blobs=True) != shots(SEED, 8, blobs=True)


def test_placeholders_become_the_bytes_of_a_session() -> None:
    frame = wire.pack({"session": TOKEN, "other": OTHER_TOKEN, "sequence": sequence(3)})
    names = Names(b"t" * 16, b"o" * 16, b"e" * 8, 40)
    assert wire.unpack(names.put_into(frame)) == {
        "session": b"t" * 16,
        "other": b"o" * 16,
        "sequence": 43,
    }


def test_shrinking_leaves_what_a_failure_needs() -> None:
    assert shrink(list(range(40)), lambda some: 7 in some and 31 in some, 100) == [7, 31]
