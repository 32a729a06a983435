"""Forwarding: what comes out is what went in, a slow side slows the other, an end is an end."""

from __future__ import annotations

import hashlib
import random
import socket
import threading
from collections.abc import Iterator

import pytest

from tapml_rpc.flow import BUFFER_BYTES, Flow, Forwarder


class Running:
    """A forwarder on a thread."""

    def __init__(self) -> None:
        self.forwarder = Forwarder()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.forwarder.step(0.5)
        self.forwarder.close()

    def joined(self) -> tuple[socket.socket, socket.socket, Flow]:
        """The outer ends of a new flow."""
        (one, inner), (other, far) = socket.socketpair(), socket.socketpair()
        for each in (inner, far):
            each.setblocking(False)
        for each in (one, other):
            each.settimeout(60)
        flow = Flow(inner, far)
        self.forwarder.post(lambda: self.forwarder.add(flow))
        return one, other, flow

    def close(self) -> None:
        self._stop.set()
        self.forwarder.post(lambda: None)
        self._thread.join(5)


@pytest.fixture
def running() -> Iterator[Running]:
    runner = Running()
    yield runner
    runner.close()


def drain(source: socket.socket) -> bytes:
    parts = []
    while piece := source.recv(1 << 16):
        parts.append(piece)
    return b"".join(parts)


def test_both_ways_at_once_bytes_come_out_as_they_went_in(running: Running) -> None:
    one, other, _ = running.joined()
    sent = [random.randbytes(3 << 20) for _ in range(2)]
    got: dict[int, bytes] = {}

    def receive(index: int, source: socket.socket) -> None:
        parts, left = [], len(sent[index])
        while left:
            parts.append(source.recv(1 << 16))
            left -= len(parts[-1])
        got[index] = b"".join(parts)

    threads = [
        threading.Thread(target=one.sendall, args=(sent[0],)),
        threading.Thread(target=other.sendall, args=(sent[1],)),
        threading.Thread(target=receive, args=(0, other)),
        threading.Thread(target=receive, args=(1, one)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == {0: sent[0], 1: sent[1]}


def test_a_side_that_takes_nothing_stops_the_other_and_one_buffer_is_all_that_is_held(
    running: Running,
) -> None:
    one, other, flow = running.joined()
    one.settimeout(0.3)
    sent = 0
    piece = bytes(64 << 10)
    with pytest.raises(TimeoutError):
        while True:
            sent += one.send(piece)
    # The sockets' own buffers, and ours.
    assert sum(way.held for way in flow._ways) <= BUFFER_BYTES and sent < BUFFER_BYTES + (1 << 20)
    got = hashlib.sha256()
    received = 0
    while received < sent:
        data = other.recv(1 << 16)
        received += len(data)
        got.update(data)
    assert received == sent and got.digest() == hashlib.sha256(bytes(sent)).digest()


def test_a_stuck_flow_does_not_hold_up_its_neighbour(running: Running) -> None:
    stuck, _silent, _ = running.joined()
    stuck.settimeout(0.2)
    with pytest.raises(TimeoutError):
        while True:
            stuck.send(bytes(64 << 10))
    one, other, _ = running.joined()
    one.sendall(b"still here")
    assert other.recv(100) == b"still here"


def test_what_was_sent_last_arrives_before_the_end_does(running: Running) -> None:
    one, other, flow = running.joined()
    one.sendall(b"x" * 200_000)
    one.close()
    assert len(drain(other)) == 200_000
    with pytest.raises(OSError):
        for _ in range(100):
            other.sendall(b"anybody?")
    assert flow.ended


def test_a_flow_that_is_ended_ends_both_sides(running: Running) -> None:
    one, other, flow = running.joined()
    one.sendall(b"hello")
    assert other.recv(5) == b"hello"
    running.forwarder.post(lambda: running.forwarder.end(flow))
    assert drain(one) == b"" and drain(other) == b""
    assert running.forwarder.flows == set()
