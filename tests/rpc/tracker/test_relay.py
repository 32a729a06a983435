"""The relay's door: who knows no secret gets nowhere, and nobody is mistaken for another."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tapml_rpc.tracker import socks
from tapml_rpc.tracker.relay import MAX_FLOWS_OF_LEASE, MAX_STRANGERS, RelayServer
from tapml_rpc.tracker.route import RelayAddress, data_address_beside, parse
from tapml_targets.errors import InputError, SetupError
from tests.rpc.tracker.trackers import PATIENCE_SECONDS, wait_for


class Relay:
    """A relay in this process whose devices come when they are called."""

    def __init__(self, dial_seconds: float = PATIENCE_SECONDS) -> None:
        self.dialled: list[tuple[str, str, str]] = []
        self.deaf = False
        self.devices: dict[str, socket.socket] = {}
        self.server = RelayServer("127.0.0.1", 0, self._dial, dial_seconds=dial_seconds)
        self.address = ("127.0.0.1", self.server.port)

    def _dial(self, lease_id: str, stream: str, role: str) -> None:
        self.dialled.append((lease_id, stream, role))
        if not self.deaf:
            threading.Thread(target=self._come, args=(lease_id, stream, role)).start()

    def _come(self, lease_id: str, stream: str, role: str) -> None:
        endpoint = socks.dial(self.address, f"{stream}.device", PATIENCE_SECONDS)
        endpoint.sendall(f"{lease_id} {role}".encode())
        self.devices[stream] = endpoint

    def client(self, name: str) -> socket.socket:
        endpoint = socks.dial(self.address, name, PATIENCE_SECONDS)
        endpoint.settimeout(PATIENCE_SECONDS)
        return endpoint


@pytest.fixture
def relay() -> Iterator[Relay]:
    served = Relay()
    yield served
    served.server.close()


def test_two_leases_reach_each_its_own_device(relay: Relay) -> None:
    for lease in ("one", "two"):
        relay.server.allow(lease, f"token{lease}")
    for lease in ("one", "two"):
        for role in ("control", "data"):
            with relay.client(f"token{lease}.{role}") as endpoint:
                assert endpoint.recv(100) == f"{lease} {role}".encode()


@pytest.mark.parametrize("name", ["guess.control", "token.shell", "token", "", "guess.device"])
def test_a_wrong_secret_or_role_is_refused(relay: Relay, name: str) -> None:
    relay.server.allow("lease", "token")
    with pytest.raises(SetupError, match="the lease has ended, or never was"):
        relay.client(name)
    assert relay.dialled == []


def test_a_lease_that_ends_ends_what_goes_through_it(relay: Relay) -> None:
    relay.server.allow("lease", "token")
    with relay.client("token.control") as endpoint:
        assert endpoint.recv(100) == b"lease control"
        relay.server.cut("lease", "token")
        assert endpoint.recv(100) == b""
    with pytest.raises(SetupError, match="has ended"):
        relay.client("token.control")


def test_a_device_that_does_not_come_is_not_waited_for_long() -> None:
    relay = Relay(dial_seconds=1.0)
    relay.server.allow("lease", "token")
    relay.deaf = True
    started = time.monotonic()
    with pytest.raises(SetupError, match="the device did not come"):
        relay.client("token.control")
    assert 0.9 < time.monotonic() - started < 30
    relay.server.close()


def test_a_devices_secret_is_good_once(relay: Relay) -> None:
    relay.server.allow("lease", "token")
    with relay.client("token.control"):
        stream = relay.dialled[0][1]
        with pytest.raises(SetupError, match="refused"):
            socks.dial(relay.address, f"{stream}.device", PATIENCE_SECONDS)


def test_a_lease_has_so_many_streams_and_no_more(relay: Relay) -> None:
    relay.server.allow("lease", "token")
    endpoints = [relay.client("token.data") for _ in range(MAX_FLOWS_OF_LEASE)]
    with pytest.raises(SetupError, match="no room"):
        relay.client("token.data")
    endpoints.pop().close()

    def fits() -> bool:
        try:
            endpoints.append(relay.client("token.data"))
        except SetupError:
            return False
        return True

    wait_for(fits)
    for endpoint in endpoints:
        endpoint.close()


def test_garbage_at_the_door_is_dropped_and_a_good_client_served(relay: Relay) -> None:
    relay.server.allow("lease", "token")
    for number in range(200):
        with socket.create_connection(relay.address, timeout=PATIENCE_SECONDS) as stranger:
            start = random.choice([b"", b"\x05", b"\x05\x01\x00", b"\x05\x01\x00\x05\x01\x00\x03"])
            stranger.sendall(start + random.randbytes(random.randrange(1, 80)))
            if number % 2:
                stranger.shutdown(socket.SHUT_WR)
    with relay.client("token.control") as endpoint:
        assert endpoint.recv(100) == b"lease control"


def test_those_who_stand_at_the_door_and_say_nothing_keep_nobody_out(relay: Relay) -> None:
    relay.server.allow("lease", "token")
    with ExitStack() as stack:
        for _ in range(MAX_STRANGERS + 20):
            stack.enter_context(socket.create_connection(relay.address, timeout=PATIENCE_SECONDS))
        started = time.monotonic()
        with relay.client("token.control") as endpoint:
            assert endpoint.recv(100) == b"lease control"
        assert time.monotonic() - started < 30


def test_bytes_may_come_one_by_one(relay: Relay) -> None:
    relay.server.allow("lease", "token")
    name = b"token.control"
    with socket.create_connection(relay.address, timeout=PATIENCE_SECONDS) as slow:
        for byte in b"\x05\x01\x00" + b"\x05\x01\x00\x03" + bytes([len(name)]) + name + b"\x00\x01":
            slow.send(bytes([byte]))
        got = b""
        while len(got) < 12 + len(b"lease control"):
            got += slow.recv(100)
        assert got == b"\x05\x00" + socks.reply(socks.GRANTED) + b"lease control"


def test_a_relays_address_names_host_lease_and_connection() -> None:
    control = str(RelayAddress("::1", 9191, "cafe", "control"))
    assert control == "relay://[::1]:9191/cafe"
    assert parse(data_address_beside(control)) == RelayAddress("::1", 9191, "cafe", "data")
    for wrong in ("relay://host/token", "relay://host:1/", "tcp://host:1/token", "relay://h:x/t"):
        with pytest.raises(InputError, match="expected relay://HOST:PORT/TOKEN"):
            parse(wrong)
