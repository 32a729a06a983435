"""The relay's tunnels: who knows no secret gets nowhere, and nobody is mistaken for another."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tapml_rpc.tracker.switchboard import MAX_FLOWS_OF_LEASE
from tapml_rpc.tunnel import (
    RelayAddress,
    bridged,
    data_address_beside,
    open_stream,
    open_tunnel,
    parse,
    ticket,
)
from tapml_rpc.websocket.server import MAX_UPGRADES
from tapml_targets.errors import InputError, SetupError
from tests.rpc.tracker.doors import RunningDoor
from tests.rpc.tracker.trackers import PATIENCE_SECONDS, wait_for


class Relay(RunningDoor):
    """A relay in this process whose devices come when they are called."""

    def __init__(self, dial_seconds: float = PATIENCE_SECONDS) -> None:
        super().__init__(dial_seconds=dial_seconds)
        self.deaf = False
        self.devices: dict[str, socket.socket] = {}
        self.door._board._dial = self._dial

    def _dial(self, lease_id: str, stream: str, role: str) -> None:
        self.calls.append((lease_id, stream, role))
        if not self.deaf:
            threading.Thread(target=self._come, args=(lease_id, stream, role)).start()

    def _come(self, lease_id: str, stream: str, role: str) -> None:
        endpoint = open_tunnel(self.relay, "/leg", stream, PATIENCE_SECONDS)
        endpoint.sendall(f"{lease_id} {role}".encode())
        self.devices[stream] = endpoint

    def client(self, path: str, secret: str) -> socket.socket:
        endpoint = open_tunnel(self.relay, path, secret, PATIENCE_SECONDS)
        endpoint.settimeout(PATIENCE_SECONDS)
        return endpoint


@pytest.fixture
def relay() -> Iterator[Relay]:
    served = Relay()
    served.allow("lease", "secret")
    yield served
    served.close()


def test_websockets_of_another_address_may_have_the_relay_s_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with closing(RunningDoor(host="127.0.0.2", port=port)) as door:
        with door.open("/tracker") as peer:
            peer.send(b"hello")
            wait_for(lambda: door.heard == [b"hello"])
        with pytest.raises(SetupError, match="never was"):
            open_tunnel(door.relay, "/control", "secret", PATIENCE_SECONDS)


def test_two_leases_reach_each_its_own_device(relay: Relay) -> None:
    for lease in ("one", "two"):
        relay.allow(lease, f"secret{lease}")
    for lease in ("one", "two"):
        for role in ("control", "data"):
            with relay.client(f"/{role}", f"secret{lease}") as endpoint:
                assert endpoint.recv(100) == f"{lease} {role}".encode()


@pytest.mark.parametrize(
    ("path", "secret"),
    [("/control", "guess"), ("/data", ""), ("/leg", "guess"), ("/leg", "secret")],
)
def test_a_wrong_secret_is_refused(relay: Relay, path: str, secret: str) -> None:
    with pytest.raises(SetupError, match="the lease has ended, or never was"):
        relay.client(path, secret)
    assert relay.calls == []


def test_another_path_is_told_what_there_is(relay: Relay) -> None:
    with pytest.raises(SetupError, match="for tapml-bytes on /control, /data, /leg"):
        relay.client("/shell", "secret")


def test_a_token_is_not_what_is_shown(relay: Relay) -> None:
    assert "token" not in ticket("token") and ticket("token") != ticket("another")
    relay.allow("own", ticket("token"))
    control = str(RelayAddress(*relay.relay, "token", "control"))
    with open_stream(control, PATIENCE_SECONDS) as endpoint:
        assert endpoint.recv(100) == b"own control"
    with pytest.raises(SetupError, match="the lease has ended, or never was"):
        relay.client("/control", "token")


def test_a_lease_that_ends_ends_what_goes_through_it(relay: Relay) -> None:
    with relay.client("/control", "secret") as endpoint:
        assert endpoint.recv(100) == b"lease control"
        relay.cut("lease", "secret")
        assert endpoint.recv(100) == b""
    with pytest.raises(SetupError, match="has ended"):
        relay.client("/control", "secret")


def test_a_device_that_does_not_come_is_not_waited_for_long() -> None:
    relay = Relay(dial_seconds=1.0)
    relay.allow("lease", "secret")
    relay.deaf = True
    started = time.monotonic()
    with pytest.raises(SetupError, match="the device did not come"):
        relay.client("/control", "secret")
    assert 0.9 < time.monotonic() - started < 30
    relay.close()


def test_a_devices_secret_is_good_once(relay: Relay) -> None:
    with relay.client("/control", "secret"):
        stream = relay.calls[0][1]
        with pytest.raises(SetupError, match="refused"):
            open_tunnel(relay.relay, "/leg", stream, PATIENCE_SECONDS)


def test_a_lease_has_so_many_streams_and_no_more(relay: Relay) -> None:
    endpoints = [relay.client("/data", "secret") for _ in range(MAX_FLOWS_OF_LEASE)]
    with pytest.raises(SetupError, match="no room"):
        relay.client("/data", "secret")
    endpoints.pop().close()

    def fits() -> bool:
        try:
            endpoints.append(relay.client("/data", "secret"))
        except SetupError:
            return False
        return True

    wait_for(fits)
    for endpoint in endpoints:
        endpoint.close()


def test_garbage_at_the_door_is_dropped_and_a_good_client_served(relay: Relay) -> None:
    request = b"GET /control HTTP/1.1\r\nHost: x\r\nUpgrade: tapml-bytes\r\n\r\n"
    for number in range(200):
        with socket.create_connection(relay.relay, timeout=PATIENCE_SECONDS) as stranger:
            start = request[: random.randrange(len(request))]
            stranger.sendall(start + random.randbytes(random.randrange(1, 80)))
            if number % 2:
                stranger.shutdown(socket.SHUT_WR)
    with relay.client("/control", "secret") as endpoint:
        assert endpoint.recv(100) == b"lease control"


def test_those_who_stand_at_the_door_and_say_nothing_keep_nobody_out(relay: Relay) -> None:
    with ExitStack() as stack:
        for _ in range(MAX_UPGRADES + 20):
            stack.enter_context(socket.create_connection(relay.relay, timeout=PATIENCE_SECONDS))
        started = time.monotonic()
        with relay.client("/control", "secret") as endpoint:
            assert endpoint.recv(100) == b"lease control"
        assert time.monotonic() - started < 30


def test_bytes_may_come_one_by_one(relay: Relay) -> None:
    request = (
        b"GET /control HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: tapml-bytes\r\n"
        b"Authorization: Bearer secret\r\n\r\n"
    )
    with socket.create_connection(relay.relay, timeout=PATIENCE_SECONDS) as slow:
        for byte in request:
            slow.send(bytes([byte]))
        got = b""
        while not got.endswith(b"lease control"):
            got += slow.recv(100)
        assert got.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")


def test_a_bridge_has_room_where_temporary_files_lie_deep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("deep" * 30)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    near, far = socket.socketpair()
    with near, closing(socket.socket(socket.AF_UNIX)) as client:
        client.connect(bridged(far).removeprefix("ipc://"))
        client.sendall(b"through")
        assert near.recv(100) == b"through"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    monkeypatch.setattr("tapml_rpc.security.private_files._MOST_PLACE_BYTES", 4096)
    near, far = socket.socketpair()
    with near, pytest.raises(SetupError, match="no temporary folder can be made"):
        bridged(far)
    assert far.fileno() < 0, "nothing is left"


def test_a_relays_address_names_host_lease_and_connection() -> None:
    control = str(RelayAddress("::1", 9191, "cafe", "control"))
    assert control == "relay://[::1]:9191/cafe"
    assert parse(data_address_beside(control)) == RelayAddress("::1", 9191, "cafe", "data")
    assert "cafe" not in repr(parse(control))
    for wrong in ("relay://host/token", "relay://host:1/", "tcp://host:1/token", "relay://h:x/t"):
        with pytest.raises(InputError, match="expected relay://HOST:PORT/TOKEN"):
            parse(wrong)
