"""A device's registration with a tracker, kept up by a thread for as long as it is wanted.

::

    with Registration(tracker, description, address, name="pixel", on_lease_ended=hub.end_lease):
        ...
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from tapml_rpc import wire
from tapml_rpc.failures import failure_from_wire
from tapml_rpc.security.credentials import Credentials
from tapml_rpc.standard_error import print_fault, say
from tapml_rpc.tracker.connection import (
    Connection,
    check_tracker_address,
    is_websocket,
    no_answer,
    open_connection,
)
from tapml_rpc.tracker.lent import HeldLease, Lent
from tapml_rpc.tracker.outbound import Outbound, tunnel_way, websocket_way
from tapml_rpc.tracker.records import (
    BEAT_SECONDS,
    RELAYED,
    RELAYED_WEBSOCKET,
    VERSION,
    is_device_name,
    on_this_machine,
)
from tapml_rpc.waking import Waker
from tapml_targets.description import to_plain
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import InputError, SetupError, TapmlError

RETRY_SECONDS: Final = 0.5
_REFUSED_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.1
# Seconds for a WebSocket to the tracker; a failed one is tried again anyhow.
_OPEN_SECONDS: Final = 2.5


class Registration:
    """Registers a device, and again whenever the tracker comes back.

    `tracker` is ``tcp://host:port``, or ``ws://`` or ``wss://`` of its WebSocket door;
    `credentials` are for it. `address` is where clients reach the device's control connection,
    under the unique `name`; `websocket` is its additional address over WebSocket, if `address`
    speaks ZeroMQ. With `relayed` clients come through the tracker, and only this process
    reaches `address` and `data_address`, if the data connection has its own; through a
    WebSocket door `address` must be of that binding.

    Holders of a lease are sent `server_key`, the public key of the device's own server, and
    `certificate`, the fingerprint of its certificate. A relay on another machine is used only
    with that key or with TLS: otherwise anybody on the way could speak to the device. Raises
    InputError for a malformed name or address, SetupError for a relay without such a secret.

    `load`, called on any thread, gives ``{"sessions": 1, "device_bytes": 4096}``. `on_lease` is
    called when a client is about to get the device; raising a TapmlError declines it.
    `on_lease_ended` is called, on its own thread, with a lease's id once its holder has no
    right to the device any more; the device is not lent again before it returns (at most two
    seconds). `report` prints a line when the registration changes; standard error by default.
    """

    def __init__(
        self,
        tracker: str,
        description: DeviceDescription,
        address: str,
        *,
        name: str,
        websocket: str = "",
        relayed: bool = False,
        data_address: str = "",
        server_key: str = "",
        certificate: str = "",
        load: Callable[[], Mapping[str, int]] = dict,
        on_lease: Callable[[HeldLease], None] | None = None,
        on_lease_ended: Callable[[str], None] | None = None,
        report: Callable[[str], None] = say,
        credentials: Credentials | None = None,
    ) -> None:
        if not is_device_name(name):
            raise InputError(
                "a device's name is 1 to 63 letters, digits, '.', '_' or '-', "
                f"beginning with a letter or a digit; got {name!r}"
            )
        check_tracker_address(tracker)
        over_websocket = is_websocket(tracker)
        # In a tunnel the session's own secret protects it on its way, over WebSocket the tracker's.
        secret = (
            tracker.startswith("wss://")
            if over_websocket
            else server_key or address.startswith("wss://")
        )
        if relayed and not secret and not on_this_machine(tracker):
            raise SetupError(
                f"refusing to be reached through {tracker} without a secret of the device's own: "
                "make keys with `tapml rpc keygen` and serve with them"
            )
        self.name = name
        self.problem: TapmlError | None = None
        """Why it is not registered now; None while it is, or if that is not known yet."""
        self._tracker = tracker
        self._register: wire.Header = {
            "type": "register",
            "versions": [VERSION],
            "name": name,
            "life": secrets.token_bytes(16),
            "device": to_plain(description),
            "address": address,
            "websocket": "" if relayed else websocket,
            "server_key": server_key,
            "certificate": certificate,
        }
        self._load = load
        self._report = report
        self._credentials = credentials
        self._registered = threading.Event()
        self._stop = threading.Event()
        outbound = None
        if relayed and over_websocket:
            self._register["address"] = RELAYED_WEBSOCKET
            outbound = Outbound(websocket_way(tracker, credentials, address, certificate))
        elif relayed:
            self._register["address"] = RELAYED
            outbound = Outbound(tunnel_way(address, data_address or address))
        self._waker = Waker()
        self._lent = Lent(on_lease, on_lease_ended, outbound, self._waker.wake)
        self._thread = threading.Thread(target=self._run, name="tapml-registration", daemon=True)
        self._thread.start()

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self, timeout: float) -> None:
        """Wait until it is registered; raises SetupError, or why the tracker refuses it."""
        deadline = time.monotonic() + timeout
        while not self._registered.wait(0.05):
            problem = self.problem
            if problem is not None and getattr(problem, "refused", False):
                raise problem.with_traceback(None)
            if time.monotonic() > deadline:
                raise problem or no_answer(self._tracker, timeout)

    def close(self) -> None:
        """Leave the tracker; leases end. Never raises, never waits long."""
        self._stop.set()
        self._waker.wake()
        self._thread.join(timeout=3)
        self._lent.close()
        if not self._thread.is_alive():
            self._waker.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            connection = None
            try:
                connection = open_connection(
                    self._tracker, self._credentials, timeout=_OPEN_SECONDS
                )
                connection.watch(self._waker.fileno())
                self._serve(connection)
            except TapmlError as error:
                self._lose(error)
            except Exception as error:
                print_fault(error)
                self._lose(InputError(f"the registration failed: {error}"))
            finally:
                if connection is not None:
                    connection.close(*([{"type": "goodbye"}] if self._stop.is_set() else []))
            self._stop.wait(RETRY_SECONDS)
        self._registered.clear()

    def _serve(self, connection: Connection) -> None:
        """Register and keep the registration alive until the tracker is gone."""
        next_beat = 0.0
        while not self._stop.is_set():
            now = time.monotonic()
            if now >= next_beat:
                load = {name: int(value) for name, value in self._load().items()}
                if self._registered.is_set():
                    connection.send({"type": "load", "load": load})
                else:
                    connection.send({**self._register, "load": load})
                next_beat = now + BEAT_SECONDS
            for lease_id in self._lent.cleared():
                connection.send({"type": "lease-cleared", "lease": lease_id})
            header = connection.receive(_POLL_SECONDS)
            self._waker.drain()
            if header is not None:
                wait = self._hear(connection, header)
                if wait is not None:
                    next_beat = time.monotonic() + wait

    def _hear(self, connection: Connection, header: wire.Header) -> float | None:
        """Take a message; the seconds until the next beat if that is not as usual."""
        kind = header.get("type")
        if kind == "registered" and not self._registered.is_set():
            self.problem = None
            self._registered.set()
            self._report(f"registered as {self.name!r} with the tracker at {self._tracker}")
        elif kind == "unknown" and self._registered.is_set():
            self._lose(InputError("the tracker does not know this device any more"))
            return 0.0
        elif kind == "refused" and not self._registered.is_set():
            problem = failure_from_wire(header.get("error"))
            vars(problem)["refused"] = True
            self._note(problem)
            return _REFUSED_SECONDS
        elif kind == "lease":
            connection.send(self._lent.take(header))
        elif kind == "lease-ended":
            self._lent.end(wire.text(header.get("lease"), "lease", 64))
        elif kind == "dial":
            self._lent.dial(header, connection.host)
        return None

    def _lose(self, error: TapmlError) -> None:
        self._registered.clear()
        self._lent.end_all()
        self._note(error)

    def _note(self, problem: TapmlError) -> None:
        if str(problem) != str(self.problem) and not self._stop.is_set():
            self._report(f"not registered: {problem}")
        self.problem = problem
