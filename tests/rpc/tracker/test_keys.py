"""A tracker with keys: who is admitted, who may take a name, what a lease says of the device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tapml.cli.secrets import admit, make_pair, write_pair
from tapml.devices.listing import list_devices
from tapml.devices.reach import open_device
from tapml.devices.tracker import device_credentials
from tapml_rpc.security.credentials import Credentials
from tapml_rpc.tracker.lent import HeldLease
from tapml_rpc.tracker.registration import Registration
from tapml_rpc.tracker.request import request_device, tracker_credentials
from tapml_targets.errors import InputError, SetupError
from tests.rpc.announced import AnnouncedProcess
from tests.rpc.tracker.trackers import TrackerProcess, made_up_device, registered


class Keyed:
    """A tracker on every address of this machine, with two clients that it admits."""

    def __init__(self, folder: Path) -> None:
        tracker, self.ada, self.bob = (make_pair(name) for name in ("tracker", "ada", "bob"))
        secret = write_pair(tracker, folder)
        clients = folder / "clients"
        for pair in (self.ada, self.bob):
            admit(clients, pair.name, pair.public)
        self.public = tracker.public
        self.options = ("--key", str(secret), "--clients", str(clients))
        self.process = TrackerProcess("tcp://0.0.0.0:0", *self.options)
        self.address = f"tcp://127.0.0.1:{self.process.address.rpartition(':')[2]}"
        self.as_ada = Credentials(keys=self.ada, server_key=self.public)
        self.as_bob = Credentials(keys=self.bob, server_key=self.public)


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Keyed]:
    tmp_path.chmod(0o700)
    started = Keyed(tmp_path)
    with started.process:
        yield started


def test_devices_and_holders_are_known_by_their_keys_and_the_lease_names_the_devices_own(
    keyed: Keyed,
) -> None:
    assert keyed.process.line["key"] == keyed.public
    device_key = make_pair("device").public
    taken: list[HeldLease] = []
    with (
        registered(
            keyed.address,
            "pixel",
            credentials=keyed.as_ada,
            server_key=device_key,
            on_lease=taken.append,
        ),
        request_device(keyed.address, name="pixel", credentials=keyed.as_bob) as lease,
    ):
        (listed,) = list_devices(keyed.address, credentials=keyed.as_bob)
        assert listed.identity == keyed.ada.public
        assert listed.leases[0].identity == taken[0].identity == keyed.bob.public
        own = lease.credentials(keyed.as_bob)
        assert own is not None and own.keys == keyed.bob and own.server_key == device_key
        # Not even the device's own random life lets another key take its name.
        with (
            pytest.raises(InputError, match="'pixel' is registered"),
            registered(keyed.address, "pixel", credentials=keyed.as_bob),
        ):
            pass


def test_an_address_in_use_is_said_with_keys_too(keyed: Keyed) -> None:
    with pytest.raises(AssertionError, match=r"Address already in use.*another address to --bind"):
        TrackerProcess(keyed.process.address, *keyed.options)


def test_a_stranger_learns_why_it_is_not_admitted(keyed: Keyed) -> None:
    stranger = Credentials(keys=make_pair("eve"), server_key=keyed.public)
    with pytest.raises(SetupError, match="does not admit this client's key 'eve'"):
        list_devices(keyed.address, credentials=stranger)
    with pytest.raises(SetupError, match="wants keys and none were given"):
        list_devices(keyed.address)


def test_a_device_without_a_secret_is_not_shown_through_a_relay_elsewhere() -> None:
    with pytest.raises(SetupError, match="without a secret of the device's own"):
        Registration(
            "tcp://192.0.2.1:9190",
            made_up_device(),
            "tcp://127.0.0.1:9",
            name="bare",
            relayed=True,
        )


def test_the_environment_names_the_trackers_key_and_ones_own(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    own, theirs = make_pair("ada"), make_pair("tracker").public
    secret = write_pair(own, tmp_path)
    address = "tcp://tracker:9190"
    assert tracker_credentials(address, {"TAPML_RPC_KEY": str(secret)}) is None
    named = {"TAPML_RPC_KEY": str(secret), "TAPML_TRACKER_KEY": theirs}
    assert tracker_credentials(address, named) == Credentials(keys=own, server_key=theirs)
    with pytest.raises(InputError, match="this client's own"):
        tracker_credentials(address, {"TAPML_TRACKER_KEY": theirs})


def test_keys_are_not_looked_at_for_a_tracker_over_websocket() -> None:
    named = {"TAPML_RPC_KEY": "nowhere.secret", "TAPML_TRACKER_KEY": "nowhere.public"}
    assert tracker_credentials("wss://tracker:9191", named) is None
    found = tracker_credentials("wss://tracker:9191", {**named, "TAPML_TRACKER_TOKEN": "word"})
    assert found == Credentials(token="word")


def test_of_ones_own_key_and_the_trackers_a_lent_device_is_reached(
    keyed: Keyed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/runtime.md says: nobody names the key of a device that a tracker lends."""
    device = make_pair("device")
    admit(tmp_path / "device clients", "bob", keyed.bob.public)
    keys = (
        *("--key", str(write_pair(device, tmp_path / "device keys"))),
        *("--clients", str(tmp_path / "device clients")),
    )
    monkeypatch.setenv("TAPML_TRACKER", keyed.address)
    monkeypatch.setenv("TAPML_TRACKER_KEY", keyed.public)
    monkeypatch.setenv("TAPML_RPC_KEY", str(write_pair(keyed.bob, tmp_path / "host keys")))
    theirs = {"TAPML_RPC_KEY": str(write_pair(keyed.ada, tmp_path / "their keys"))}
    for name, own in (("with", keys), ("without", ())):
        arguments = ("--device", "cpu", "--tracker", keyed.address, "--name", name, *own)
        with (
            AnnouncedProcess(
                "tapml.cli.main", "rpc", "serve", *arguments, in_order=True, environ=theirs
            ),
            open_device(f"tracker:{name},wait=60") as session,
        ):
            session.fence()


def test_what_would_be_readable_on_its_way_is_not_sent_by_who_has_keys(
    keyed: Keyed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAPML_RPC_KEY", str(write_pair(keyed.bob, tmp_path / "host keys")))
    with (
        registered(keyed.address, "bare", credentials=keyed.as_ada, address="tcp://192.0.2.1:9190"),
        request_device(keyed.address, name="bare", credentials=keyed.as_bob) as lease,
        pytest.raises(InputError, match=r"'bare' has no keys.*serve it with --key"),
    ):
        device_credentials(lease)
