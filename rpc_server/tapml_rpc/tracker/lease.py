"""A device lent by a tracker: held, and given back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tapml_rpc import wire
from tapml_rpc.failures import failure_from_wire
from tapml_rpc.security.credentials import Credentials
from tapml_rpc.tracker.connection import Connection, is_websocket
from tapml_rpc.tracker.records import BEAT_SECONDS, RELAYED, printable
from tapml_rpc.tunnel import RelayAddress, leads_to_websocket, without_secret
from tapml_targets.description import fingerprint, from_plain
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import DeviceLostError, NoSuchDeviceError, TapmlError

_POLL_SECONDS: Final = 0.2


class Lease:
    """A device that belongs to this process while the lease lives; ends with this process.

    `id` is for the tracker and for people, `name` the device's. `address` is what ``connect``
    takes: the device's own, or one that leads through the relay. `device` is the device as it
    registered, `token` the secret that it asks for. `server_key` is the public key of its own
    server, `certificate` the fingerprint at `address`; both may be empty. `lost` says why the
    lease is over; None while it is not.
    """

    def __init__(
        self,
        connection: Connection,
        granted: wire.Header,
        on_lost: Callable[[TapmlError], None] | None = None,
    ) -> None:
        self.id = wire.text(granted.get("lease"), "lease", 64)
        self.name = wire.text(granted.get("name"), "name", 64)
        self.token = wire.text(granted.get("token"), "token", 64)
        self.device: DeviceDescription = from_plain(granted.get("device"))
        self.server_key = wire.text(granted.get("server_key", ""), "server key", 64)
        self.certificate = wire.text(granted.get("certificate", ""), "certificate", 128)
        self._trusted: Credentials | None = None
        self.address = self._way(connection, granted)
        self.lost: TapmlError | None = None
        self._connection = connection
        self._on_lost = on_lost
        self._stop = threading.Event()
        self._news = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tapml-lease", daemon=True)
        self._thread.start()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def check(self) -> None:
        """Raise the error that ended the lease, if it has ended."""
        if self.lost is not None:
            raise self.lost.with_traceback(None)

    def over(self, seconds: float) -> str:
        """Why the lease is over, waiting up to `seconds` for that; empty while it is not."""
        self._news.wait(seconds)
        if self.lost is not None:
            return str(self.lost)
        return f"the lease on {self.name!r} was given back" if self._stop.is_set() else ""

    def credentials(self, own: Credentials | None) -> Credentials | None:
        """Credentials for the device: this side's own secrets, and the device's key.

        Over WebSocket the lease itself is the secret; the trusted certificate is the one the lease
        names, else whatever this side trusts.
        """
        if self.address.startswith(("ws://", "wss://")) or leads_to_websocket(self.address):
            trusted = self._trusted or own or Credentials()
            if self.certificate and self._trusted is None:
                trusted = replace(trusted, fingerprint=self.certificate, ca_file=None)
            return replace(trusted, token=self.token)
        if own is None or own.keys is None or not self.server_key:
            return own
        return replace(own, server_key=self.server_key)

    def verify(self, device: DeviceDescription) -> None:
        """Raise NoSuchDeviceError if the device at the address is not the one the tracker lent."""
        if fingerprint(device) != fingerprint(self.device):
            raise NoSuchDeviceError(
                f"{self.name!r} was registered as {_shown(self.device)}, but {_shown(device)} "
                f"answers at {without_secret(self.address)}; the registration is not that "
                "device's own"
            )

    def release(self) -> None:
        """Give the device back. Never raises; a second call does nothing."""
        self._stop.set()
        self._news.set()
        self._thread.join(timeout=2)

    def _way(self, connection: Connection, granted: wire.Header) -> str:
        address = wire.text(granted.get("address"), "address", 256)
        if not address.startswith(RELAYED):
            return address
        if address != RELAYED and is_websocket(connection.address):
            # The way that has led to the tracker leads through it, with the same trust.
            self._trusted = connection.credentials or Credentials()
            return f"relay+{connection.address}/{self.token}"
        port = wire.integer(granted.get("relay_port"), "relay port", 65535)
        way = str(RelayAddress(connection.host, port, self.token, "control"))
        return way.replace(RELAYED, address, 1)

    def _run(self) -> None:
        try:
            self._hold()
        except TapmlError as error:
            self._lose(f"the lease on {self.name!r} is over: {error}")
        finally:
            if self.lost is None:
                last = ({"type": "release", "lease": self.id}, {"type": "goodbye"})
                self._connection.close(*last)
            else:
                self._connection.close()

    def _hold(self) -> None:
        next_beat = 0.0
        while not self._stop.is_set() and self.lost is None:
            now = time.monotonic()
            if now >= next_beat:
                self._connection.send({"type": "renew", "leases": [self.id]})
                next_beat = now + BEAT_SECONDS
            header = self._connection.receive(_POLL_SECONDS)
            if header is not None and header.get("type") == "lease-ended":
                self._lose(str(failure_from_wire(header.get("error"))))

    def _lose(self, message: str) -> None:
        if self._stop.is_set() or self.lost is not None:
            return
        self.lost = DeviceLostError(message)
        self._news.set()
        if self._on_lost is not None:
            self._on_lost(self.lost)


def _shown(device: DeviceDescription) -> str:
    return printable(f"{device.name} ({device.vendor_platform}, {device.driver_version})")
