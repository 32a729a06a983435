"""``tapml rpc serve --tracker``: a real device, lent, through the relay, by keys, after faults."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tapml.cli.secrets import admit, make_pair, write_pair
from tapml.devices.listing import list_devices
from tapml.devices.reach import open_device
from tapml_rpc.client import connect
from tapml_rpc.security.credentials import Credentials
from tapml_rpc.tracker.request import request_device
from tapml_targets.errors import DeviceLostError, SetupError
from tests.conftest import RequireDevice
from tests.rpc.announced import AnnouncedProcess
from tests.rpc.tracker.trackers import Child, TrackerProcess, wait_for

USES = (
    "import sys\n"
    "from tapml.devices.reach import open_device\n"
    "session = open_device('tracker:served')\n"
    "buffer = session.allocate(1 << 20)\n"
    "session.fence()\n"
    "print('there', flush=True)\n"
    "sys.stdin.readline()\n"
)


@contextmanager
def served(*arguments: str, **environ: str) -> Iterator[dict[str, Any]]:
    """``tapml rpc serve`` of an OpenCL device called ``served``; its announcement."""
    serve = ("tapml.cli.main", "rpc", "serve")
    with AnnouncedProcess(
        *serve, "--name", "served", *arguments, in_order=True, environ=environ
    ) as it:
        yield it.line


@pytest.fixture(params=["direct", "through the relay"])
def lent(
    request: pytest.FixtureRequest,
    require_device: RequireDevice,
    shared_tracker: TrackerProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[TrackerProcess]:
    """A tracker that lends a real device, which the environment names."""
    require_device("opencl")
    through = ["--through-tracker"] if request.param != "direct" else []
    monkeypatch.setenv("TAPML_TRACKER", shared_tracker.address)
    with served("--tracker", shared_tracker.address, *through):
        wait_for(lambda: list_devices(shared_tracker.address))
        yield shared_tracker
    wait_for(lambda: not list_devices(shared_tracker.address))


def test_a_lent_device_computes_and_is_rid_of_a_client_that_is_killed(
    lent: TrackerProcess,
) -> None:
    with open_device("tracker:served") as session:
        buffer = session.allocate(6 << 20)
        payload = bytes(range(256)) * (3 << 13)
        session.write(buffer, payload)
        assert bytes(session.read(buffer)) == payload
        wait_for(lambda: list_devices(lent.address)[0].load.get("sessions") == 1)
    with Child(USES) as client:
        assert client.ready.wait(60)
        client.process.kill()
        started = time.monotonic()
        with open_device("tracker:served") as session:
            session.fence()
            assert time.monotonic() - started < 30
            wait_for(lambda: list_devices(lent.address)[0].load.get("sessions") == 1)


def test_a_lease_that_is_over_ends_the_session_and_lets_nobody_in_again(
    lent: TrackerProcess,
) -> None:
    lease = request_device(lent.address, name="served", timeout=60)
    with connect(lease.address, lease=lease) as session:
        session.fence()
        # What is printed and reported is nobody's way in.
        assert lease.token not in repr(session)
        lease.release()
        with pytest.raises(DeviceLostError, match="the lease on 'served' was given back"):
            for _ in range(6000):
                session.fence()
                time.sleep(0.01)
    with pytest.raises(SetupError):
        connect(lease.address, lease=lease.token, timeout=2)


def test_with_keys_all_the_way_the_lease_brings_the_devices_own(
    require_device: RequireDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_device("opencl")
    tmp_path.chmod(0o700)
    tracker_keys, device_keys, ada = (make_pair(name) for name in ("tracker", "device", "ada"))
    secrets = {pair.name: write_pair(pair, tmp_path) for pair in (tracker_keys, device_keys, ada)}
    clients = tmp_path / "clients"
    for pair in (device_keys, ada):
        admit(clients, pair.name, pair.public)
    options = ("--clients", str(clients))
    with TrackerProcess("tcp://0.0.0.0:0", "--key", str(secrets["tracker"]), *options) as tracker:
        address = f"tcp://127.0.0.1:{tracker.address.rpartition(':')[2]}"
        with served(
            *("--tracker", address, "--key", str(secrets["device"]), *options),
            "--through-tracker",
            TAPML_TRACKER_KEY=tracker_keys.public,
            TAPML_RPC_KEY=str(secrets["device"]),
        ):
            monkeypatch.setenv("TAPML_TRACKER", address)
            monkeypatch.setenv("TAPML_TRACKER_KEY", tracker_keys.public)
            monkeypatch.setenv("TAPML_RPC_KEY", str(secrets["ada"]))
            # The device's own key is what the lease says, whatever the environment thinks.
            monkeypatch.setenv("TAPML_RPC_SERVER_KEY", make_pair("other").public)
            own = Credentials(keys=ada, server_key=tracker_keys.public)
            wait_for(lambda: list_devices(address, credentials=own))
            with open_device("tracker:served") as session:
                session.fence()
                (held,) = list_devices(address, credentials=own)[0].leases
                assert held.identity == ada.public
