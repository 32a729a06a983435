"""Plain control connections of a supervisor, and what a stranger may make it keep."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tapml_rpc import wire
from tapml_rpc.zmtp.listener import MOST_CONNECTIONS
from tests.rpc.peers import RawPeer, ServerProcess
from tests.rpc.strangers import frame, heard, hung_up_on, memory_bytes, send_without_end, stranger

PATIENCE = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(device="cpu") as process:
        yield process


@pytest.fixture
def good(server: ServerProcess) -> Iterator[RawPeer]:
    """A client beside it all, which is served."""
    with RawPeer(server.address) as peer:
        yield peer
        assert peer.batch(["allocate", 1, 8])[0]["type"] == "done"


def test_a_message_without_an_end_is_hung_up_on_and_takes_no_memory(
    server: ServerProcess, good: RawPeer
) -> None:
    before = memory_bytes(server.line["pid"])
    with stranger(server.address) as connection:
        send_without_end(connection)
    assert memory_bytes(server.line["pid"]) - before < 64 << 20


@pytest.mark.parametrize("role", ["control", "data"])
def test_a_header_longer_than_any_hello_is_refused_with_the_bound_and_not_kept(
    server: ServerProcess, good: RawPeer, role: str
) -> None:
    long = wire.pack({"type": "hello", "versions": [1], "padding": [b"x" * 200_000] * 4})
    address = server.address if role == "control" else good.welcome["data_address"]
    with stranger(address) as connection:
        connection.sendall(frame(long))
        answer = heard(connection)
    assert answer["type"] == {"control": "refused", "data": "error"}[role]
    assert "a header has 1 to 65536 bytes on control" in answer["error"]["message"]


def test_strangers_hold_a_headers_bound_each_and_no_chunk(
    server: ServerProcess, good: RawPeer
) -> None:
    """Not 4 MiB each: all but the last byte of as long a header, and of as long a chunk."""
    before = memory_bytes(server.line["pid"])
    half = frame(bytes(wire.MAX_CHUNK_BYTES))[:-1]
    connections = []
    for address in (server.address, good.welcome["data_address"]):
        for start in (b"", frame(wire.pack({"type": "batch", "session": b"no"}), more=True)):
            for _ in range(8):
                connections.append(stranger(address))
                connections[-1].sendall(start + half)
    assert good.batch(["allocate", 2, 8], ["fence"])[0]["type"] == "done"
    assert memory_bytes(server.line["pid"]) - before < len(connections) << 20
    for connection in connections:
        connection.close()


def test_who_has_said_whose_it_is_may_send_headers_of_any_length_allowed(good: RawPeer) -> None:
    good.batch(["allocate", 3, 8])
    long = [["fill", 3, 0, 8, b"x" * 4096]] * 100
    assert good.batch(*long, ["free", 3])[0].get("error") is None


def test_a_session_ends_at_once_with_its_control_connection(
    server: ServerProcess, good: RawPeer
) -> None:
    with stranger(server.address) as other:
        hello = {"type": "hello", "versions": [wire.VERSION], "download_window": 8 << 20}
        other.sendall(frame(wire.pack(hello)))
        assert heard(other)["type"] == "welcome"
        # Once those of earlier tests have ended.
        good.wait_for(sessions=2)
    good.wait_for(sessions=1)


def test_a_full_house_of_strangers_keeps_no_client_out(server: ServerProcess) -> None:
    connections = [stranger(server.address) for _ in range(MOST_CONNECTIONS)]
    with RawPeer(server.address) as peer:
        assert peer.batch(["allocate", 1, 8])[0]["type"] == "done"
    assert hung_up_on(connections[0])
    for connection in connections:
        connection.close()


def test_an_address_in_use_is_said_in_a_sentence(server: ServerProcess) -> None:
    module = ("-m", "tapml_rpc.supervisor.serve", "--device", "cpu", "--bind", server.address)
    second = subprocess.run(
        [sys.executable, *module], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert second.returncode == 2
    assert "cannot listen: Address already in use; another server listens" in second.stderr
