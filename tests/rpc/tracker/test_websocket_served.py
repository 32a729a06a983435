"""``tapml rpc serve`` and a tracker over ``wss``: a token to come in, the lease for the rest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tapml.devices.listing import list_devices
from tapml_rpc.client import connect
from tapml_rpc.security.credentials import Credentials
from tapml_rpc.tracker.lease import Lease
from tapml_rpc.tracker.request import request_device
from tapml_targets.errors import DeviceLostError, SetupError
from tests.conftest import RequireDevice
from tests.rpc.tracker.test_served import served
from tests.rpc.tracker.trackers import PATIENCE_SECONDS, TrackerProcess, wait_for

NBYTES = 6 << 20


class Secured:
    """A tracker on every address of this machine, with two real devices."""

    def __init__(self, stack: ExitStack) -> None:
        listen = ("--websocket", "wss://0.0.0.0:0")
        self.process = stack.enter_context(TrackerProcess("tcp://127.0.0.1:0", *listen))
        line = self.process.line
        self.address = line["websocket"].replace("0.0.0.0", "127.0.0.1")
        self.credentials = Credentials(token=line["token"], fingerprint=line["fingerprint"])
        environ = {
            "TAPML_TRACKER_TOKEN": line["token"],
            "TAPML_TRACKER_FINGERPRINT": line["fingerprint"],
        }
        devices = (
            ("--name", "direct", *listen),
            ("--name", "hidden", "--websocket", "wss://127.0.0.1:0", "--through-tracker"),
        )
        with ThreadPoolExecutor() as pool:
            started = [served(*given, "--tracker", self.address, **environ) for given in devices]
            lines = list(pool.map(stack.enter_context, started))
        self.fingerprints = [each["fingerprint"] for each in lines]
        wait_for(lambda: len(self.listed()) == 2)

    def listed(self) -> list[str]:
        return [device.name for device in list_devices(self.address, credentials=self.credentials)]

    def lend(self, name: str) -> Lease:
        return request_device(
            self.address, name=name, credentials=self.credentials, timeout=PATIENCE_SECONDS
        )


@pytest.fixture(scope="module")
def secured(
    require_device: RequireDevice, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    require_device("opencl")
    folder: Path = tmp_path_factory.mktemp("config")
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("TAPML_CONFIG_DIR", str(folder))
        yield Secured(stack)


def assert_computes(lease: Lease) -> None:
    payload = os.urandom(NBYTES)
    credentials = lease.credentials(None)
    with connect(lease.address, lease=lease.token, credentials=credentials) as session:
        lease.verify(session.device)
        buffer = session.allocate(NBYTES)
        session.write(buffer, payload)
        assert bytes(session.read(buffer)) == payload


def test_strangers_are_kept_out_and_send_no_token_to_a_tracker_that_is_another(
    secured: Secured,
) -> None:
    trusted = Credentials(fingerprint=secured.credentials.fingerprint)
    with pytest.raises(SetupError, match="no token came"):
        list_devices(secured.address, credentials=trusted)
    other = Credentials(token=secured.credentials.token, fingerprint="00" * 32)
    with pytest.raises(SetupError, match="fingerprint"):
        list_devices(secured.address, credentials=other)


def test_a_tracker_opens_no_door_that_is_not_safe() -> None:
    with pytest.raises(AssertionError, match="without encryption only loopback is safe"):
        TrackerProcess("tcp://127.0.0.1:0", "--websocket", "ws://0.0.0.0:0")


@pytest.mark.parametrize("name", ["direct", "hidden"])
def test_a_lease_is_all_that_a_client_needs_for_the_device(secured: Secured, name: str) -> None:
    with secured.lend(name) as lease:
        scheme = "wss" if name == "direct" else "relay+wss"
        assert lease.address.startswith(f"{scheme}://127.0.0.1:")
        assert_computes(lease)
        listed = list_devices(secured.address, credentials=secured.credentials)
        (held,) = next(device for device in listed if device.name == name).leases
        assert held.identity.startswith("token:")


def test_who_asked_over_zeromq_is_given_the_way_over_websocket_and_whom_to_trust(
    secured: Secured,
) -> None:
    with request_device(secured.process.address, name="hidden", timeout=PATIENCE_SECONDS) as lease:
        assert lease.address.startswith("relay+wss://127.0.0.1:")
        assert lease.certificate == secured.credentials.fingerprint
        assert_computes(lease)
    with request_device(secured.process.address, name="direct", timeout=PATIENCE_SECONDS) as lease:
        assert lease.certificate in secured.fingerprints
        assert_computes(lease)


@pytest.mark.parametrize("name", ["direct", "hidden"])
def test_a_lease_that_is_over_ends_the_session_and_opens_no_other(
    secured: Secured, name: str
) -> None:
    lease = secured.lend(name)
    credentials = lease.credentials(None)
    with connect(lease.address, lease=lease.token, credentials=credentials) as session:
        session.fence()
        lease.release()
        with pytest.raises(DeviceLostError):
            while True:
                session.fence()
    with pytest.raises(SetupError, match=r"the lease has ended|does not take that token"):
        connect(lease.address, lease=lease.token, credentials=credentials)
