"""The hub: a lease lets in as long as it lasts, and a session's end is told anew each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from tapml_rpc import wire
from tapml_rpc.supervisor.hub import Hub
from tapml_rpc.supervisor.options import SupervisorOptions
from tapml_rpc.tracker.lease_guard import LeaseGuard
from tapml_rpc.tracker.lent import HeldLease
from tapml_rpc.websocket.admission import OneToken
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import SetupError
from tapml_targets.limits import Limits

# Nothing here waits for a worker to open it.
DEVICE = DeviceDescription("opencl", 0, "none", "none", "cpu", "0", Limits())
ADA = HeldLease("1", "ada's token", exclusive=False, identity="ada", label="ada@desk")
BOB = HeldLease("2", "bob's token", exclusive=False, identity="bob", label="bob@desk")
HELLO: wire.Header = {"type": "hello", "versions": [wire.VERSION], "download_window": 1 << 20}


class Told:
    """A channel that keeps what a client would read."""

    def __init__(self) -> None:
        self.control: list[wire.Header] = []

    def send_control(self, packed: bytes) -> bool:
        self.control.append(wire.unpack(packed))
        return True

    def send_data(
        self,
        packed: bytes,
        parts: Sequence[memoryview | bytes],
        sent: Callable[[], None] | None = None,
    ) -> bool:
        return True


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub(DEVICE, SupervisorOptions())
    yield hub
    for relay, _ in list(hub._relays.values()):
        relay.end("the test is over", kill=True)
    hub.close()


def admit(hub: Hub, token: str) -> str:
    """The identity a connection with a token is given."""
    return LeaseGuard(hub.holder, OneToken("the device's own")).check(token, "127.0.0.1")


def test_who_was_let_in_by_a_lease_is_in_no_session_without_it(hub: Hub) -> None:
    hub.lend(ADA)
    with pytest.raises(SetupError, match="names no lease"):
        hub.hello(HELLO, Told(), admit(hub, ADA.token))
    assert not hub.sessions()


@pytest.mark.parametrize("presented", ["", ADA.token])
def test_a_lease_that_ends_before_the_hello_opens_nothing(hub: Hub, presented: str) -> None:
    hub.lend(ADA)
    identity = admit(hub, ADA.token)
    hub.take_back(ADA.id)
    with pytest.raises(SetupError, match=r"names no lease|is over"):
        hub.hello(HELLO | {"lease": presented}, Told(), identity)
    hub.lend(HeldLease("3", "cyd's token", exclusive=True, identity="cyd", label="cyd@desk"))


def test_a_lease_is_not_lent_on_to_another_holders_connection(hub: Hub) -> None:
    hub.lend(ADA)
    hub.lend(BOB)
    with pytest.raises(SetupError, match="another holder's lease"):
        hub.hello(HELLO | {"lease": BOB.token}, Told(), admit(hub, ADA.token))


def test_a_session_belongs_to_the_lease_that_let_it_in(hub: Hub) -> None:
    hub.lend(ADA)
    relay, _ = hub.hello(HELLO | {"lease": ADA.token}, Told(), admit(hub, ADA.token))
    assert relay.lease == ADA.id
