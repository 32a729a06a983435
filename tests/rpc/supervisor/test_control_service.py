"""Plain control connections of a supervisor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tapml_rpc import wire
from tests.rpc.peers import RawPeer, ServerProcess
from tests.rpc.strangers import frame, heard, stranger

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


@pytest.mark.parametrize("role", ["control", "data"])
def test_a_header_longer_than_any_hello_is_refused_with_the_bound_and_not_kept(
    server: ServerProcess, good: RawPeer, role: str
) -> None:
    long = wire.pack({"type": "hello", "versions": [wire.VERSION], "padding": [b"x" * 200_000] * 4})
    address = server.address if role == "control" else good.welcome["data_address"]
    with stranger(address) as connection:
        connection.sendall(frame(long))
        answer = heard(connection)
    assert answer["type"] == {"control": "refused", "data": "error"}[role]
    assert "1 to 65536" in answer["error"]["message"]


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
