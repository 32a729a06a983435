"""What no client of ours sends: the server answers or drops it, and serves a good client beside."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tapml_rpc import wire
from tests.rpc.peers import RawPeer, ServerProcess

LIVE = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
NAMES = [
    "allocate",
    "free",
    "write",
    "read",
    "fill",
    "copy",
    "paste",
    "load",
    "unload",
    "call",
    "program",
    "execute",
    "forget",
    "fence",
    "reset",
    "nothing",
]

small = st.integers(-2, 6) | st.sampled_from([1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
leaf = small | st.none() | st.booleans() | st.floats() | st.text(max_size=6) | st.binary(max_size=6)
value = st.recursive(
    leaf,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
command = st.builds(
    lambda name, fields: [name, *fields], st.sampled_from(NAMES), st.lists(value, max_size=7)
)
field_names = st.sampled_from(
    ["type", "session", "epoch", "sequence", "commands", "bytes", "versions"]
)


def assert_serves(server: ServerProcess) -> None:
    """A good client that comes now gets its answer."""
    with RawPeer(server.address) as good:
        assert_answers(good)
    assert server.process.poll() is None


def assert_answers(good: RawPeer) -> None:
    """A good client still gets its answer."""
    answer, chunk = good.batch(
        *(["allocate", 1, 8], ["write", 1, 0, 8, 0], ["read", 1, 2, 4], ["free", 1]),
        chunk=b"abcdefgh",
    )
    assert (answer["type"], chunk) == ("done", b"cdef"), answer


@pytest.fixture
def good(server: ServerProcess) -> Iterator[RawPeer]:
    """A good client beside; one that comes afterwards is served as well."""
    with RawPeer(server.address) as beside:
        yield beside
    assert_serves(server)


@LIVE
@given(commands=st.lists(command | value, max_size=6), chunk=st.none() | st.binary(max_size=40))
def test_any_commands_of_a_session_get_one_answer(
    peer: RawPeer, server: ServerProcess, commands: list[Any], chunk: bytes | None
) -> None:
    answer, _ = peer.batch(*commands, chunk=chunk)
    while answer["type"] == "data":
        answer, _ = peer.receive()
    assert answer["type"] == "done"
    assert server.process.poll() is None
    answer, _ = peer.batch(["reset"], ["free", 1], ["fence"])
    assert "error" not in answer


@LIVE
@given(header=st.dictionaries(field_names | st.text(max_size=6), value, max_size=6))
def test_any_header_of_a_session_is_answered_or_dropped(
    peer: RawPeer, good: RawPeer, header: dict[str, Any]
) -> None:
    peer.send({"type": "batch", **header})
    peer.control.send(msgpack.packb({"session": peer.welcome["session"], **header}))
    assert_answers(good)


@LIVE
@given(frames=st.lists(st.binary(max_size=60), min_size=1, max_size=4))
def test_any_frames_of_a_stranger_are_answered_or_dropped(
    peer: RawPeer, good: RawPeer, frames: list[bytes]
) -> None:
    peer.send_frames(frames)
    peer.control.send_multipart(frames)
    assert_answers(good)


@LIVE
@given(position=st.integers(0, 400), byte=st.integers(0, 255))
def test_a_good_message_with_one_wrong_byte_kills_nothing(
    peer: RawPeer, good: RawPeer, position: int, byte: int
) -> None:
    sound = wire.pack(
        {
            "type": "batch",
            "session": peer.welcome["session"],
            "epoch": peer.welcome["epoch"],
            "sequence": 1,
            "commands": [["allocate", 1, 8], ["fill", 1, 0, 8, b"ab"], ["read", 1, 0, 8]],
        }
    )
    wrong = bytearray(sound)
    wrong[position % len(sound)] = byte
    peer.send_frames([bytes(wrong)])
    assert_answers(good)


def test_a_message_without_a_session_is_refused_with_a_reason(server: ServerProcess) -> None:
    with RawPeer(server.address) as stranger:
        stranger.send({"type": "batch", "sequence": 3, "commands": [], "session": b"guess"})
        answer, _ = stranger.receive()
        assert (answer["type"], answer["sequence"]) == ("error", 3)
        assert "the session has ended" in answer["error"]["message"]


def test_an_oversized_frame_costs_its_sender_the_connection_alone(server: ServerProcess) -> None:
    with RawPeer(server.address) as huge:
        huge.batch(["fence"])
        own = {"type": "batch", "commands": []}
        huge.send({**own, "sequence": 2}, bytes(wire.MAX_CHUNK_BYTES + 1))
        assert "of 4194305 bytes" in huge.receive()[0]["error"]["message"]
        # Where libzmq serves that is refused, and a frame that it does not take ends the session.
        huge.send({**own, "sequence": 3}, bytes(wire.MAX_FRAME_BYTES + 1))
        ended = huge.hear()
        assert ended["type"] == "event"
        assert "4194304" in ended["error"]["message"]
    assert_serves(server)


def test_an_oversized_header_is_a_protocol_error(peer: RawPeer, server: ServerProcess) -> None:
    peer.send_frames([b"\x81\xa1a\xc6" + bytes(wire.MAX_HEADER_BYTES)])
    answer, _ = peer.receive()
    assert answer["error"]["kind"] == "ProtocolError"
    assert_serves(server)


@pytest.mark.parametrize(
    "commands, said",
    [
        ([["write", 1, 0, 8, 0]], "names bytes 0 to 8 of a chunk of 0"),
        ([["write", 1, 0, 8]], "wrong number of fields in 'write'"),
        ([["write", 1, 0, 8, 0, 0]], "wrong number of fields in 'write'"),
        ([["fill", 1, 0, 8, b""]], "at least one byte"),
        ([["allocate", 1, 8]], "handle 1 is in use"),
        ([["copy", 1, 0, 1, 4, 8]], "outside buffer 1 of 8 bytes"),
        ([["copy", 1, 0, 1, 2, 4]], "must not overlap"),
        ([["read", 1, 0, True]], "byte count must be an integer"),
        ([["read", [1], 0, 1]], "no buffer has the handle"),
        ([["call", 5, "x", [], {}, {}]], "no Library has the handle 5"),
        ([["paste", 1, 0, "0" * 64, 0, 8]], "is not attached"),
        ([["dance"]], "unknown command 'dance'"),
        ([17], "unknown command '17'"),
    ],
)
def test_a_wrong_command_is_named(peer: RawPeer, commands: list[Any], said: str) -> None:
    peer.batch(["allocate", 1, 8])
    answer, _ = peer.batch(*commands)
    assert said in answer["error"]["message"]


def test_a_batch_over_its_bounds_is_refused_as_a_whole(peer: RawPeer) -> None:
    bound = peer.welcome["bounds"]["commands"]
    peer.send({"type": "batch", "sequence": 1, "commands": [["fence"]] * (bound + 1)})
    answer, _ = peer.receive()
    assert "commands must be an array of at most" in answer["error"]["message"]


def test_more_handles_than_allowed_are_refused(peer: RawPeer) -> None:
    bound = peer.welcome["bounds"]["handles"]
    step = 4096
    for start in range(0, bound, step):
        answer, _ = peer.batch(*(["allocate", start + i, 1] for i in range(step)))
        assert "error" not in answer
    answer, _ = peer.batch(["allocate", bound, 1])
    assert f"already holds {bound} handles" in answer["error"]["message"]


def test_more_memory_than_allowed_is_refused(server: ServerProcess) -> None:
    with ServerProcess("--session-bytes", "1000") as own, RawPeer(own.address) as peer:
        assert "error" not in peer.batch(["allocate", 1, 600])[0]
        answer, _ = peer.batch(["allocate", 2, 600])
        assert "its bound is 1000" in answer["error"]["message"]
        answer, _ = peer.batch(["free", 1], ["reset"], ["allocate", 2, 600])
        assert "error" not in answer


def test_a_peer_that_speaks_no_zeromq_disturbs_nobody(server: ServerProcess) -> None:
    host, port = server.address.removeprefix("tcp://").split(":")
    for request in (b"GET / HTTP/1.1\r\n\r\n" * 10, b"\xff" * 4096, bytes(4096)):
        with socket.create_connection((host, int(port)), timeout=5) as plain:
            plain.sendall(request)
            assert_serves(server)


def test_a_flood_of_batches_without_credit_is_bounded(peer: RawPeer, server: ServerProcess) -> None:
    peer.batch(["allocate", 1, 16 << 20])
    for sequence in range(2, 200):
        peer.send({"type": "batch", "sequence": sequence, "commands": [["read", 1, 0, 16 << 20]]})
    kinds: set[str] = set()
    while len(kinds) < 2 or peer.data.poll(500):
        header, _ = peer.receive()
        kinds.add(header["type"])
        if header["type"] == "error":
            assert "batches wait for an answer" in header["error"]["message"]
    assert kinds == {"data", "error"}
    assert_serves(server)


def test_zmq_is_not_asked_to_take_what_nobody_reads(peer: RawPeer, server: ServerProcess) -> None:
    peer.data.setsockopt(zmq.RCVHWM, 1)
    for sequence in range(1, 3000):
        peer.send({"type": "batch", "sequence": sequence, "commands": [["fence"]]})
    assert_serves(server)
