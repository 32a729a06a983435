"""What all fronts of a supervisor share: who is let in, the sessions, the workers, the blobs."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tapml_rpc import wire
from tapml_rpc.bounds import Bounds
from tapml_rpc.failures import failure_from_wire
from tapml_rpc.features import FEATURES
from tapml_rpc.security.standing import LEASE_IDENTITY, Standing
from tapml_rpc.server_session import TOKEN_BYTES
from tapml_rpc.supervisor.channel import Channel
from tapml_rpc.supervisor.options import SupervisorOptions
from tapml_rpc.supervisor.refusals import lost_session
from tapml_rpc.supervisor.relay import Relay
from tapml_rpc.supervisor.turns import Turns
from tapml_rpc.supervisor.worker_process import WorkerPool
from tapml_targets.description_format import to_plain
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import DeviceLostError, ProtocolError, SetupError
from tapml_targets.installed import package_version
from tapml_targets.platforms import load_driver_module

if TYPE_CHECKING:
    from tapml_rpc.blobs.store import BlobStore
    from tapml_rpc.tracker.lent import HeldLease

EPOCH_BYTES: Final = 8
_MAX_DEADLINE_SECONDS: Final = 86400
_END_SECONDS: Final = 1.5
_PAST_SESSIONS: Final = 64


class Hub:
    """The supervisor's state. `hello`, `relay` and `sessions` may be called from any thread.

    Parameters
    ----------
    device
        What is served.
    options
        How.
    blobs
        What is kept by hash; None for nothing.

    Attributes
    ----------
    epoch
        Random bytes of this supervisor's life.
    standing
        Whether those who were let in may stay; it is told of the lists by whoever has them.
    """

    def __init__(
        self, device: DeviceDescription, options: SupervisorOptions, blobs: BlobStore | None = None
    ) -> None:
        self.device = device
        self.options = options
        self.blobs = blobs
        self.epoch = secrets.token_bytes(EPOCH_BYTES)
        # A driver that lets one process at a time use its device says so.
        exclusive = bool(getattr(load_driver_module(device.platform), "EXCLUSIVE", False))
        self.bounds = Bounds(sessions=1) if exclusive else Bounds()
        if options.session_bytes > 0:
            self.bounds = replace(self.bounds, session_bytes=options.session_bytes)
        self._device = to_plain(device)
        self._relays: dict[bytes, tuple[Relay, float]] = {}
        # Whose they were, why they ended and what they were told of it, the latest ones. Not as
        # an error: one that is raised keeps the frames it went through, and what lies in them.
        self._past: dict[bytes, tuple[str, str, dict[str, Any] | None]] = {}
        self._lock = threading.Lock()
        self._leases: dict[str, HeldLease] = {}
        self._turns = Turns()
        self.standing = Standing(self._identities)
        self._pool = WorkerPool(
            device, allow_native=options.allow_shared_libraries, spare=not exclusive
        )

    def start(self) -> None:
        """Open the device in a first worker.

        Raises
        ------
        TapmlError
            If it does not open: nobody should be let in then.
        """
        self._pool.prepare().wait_until_open()

    def hello(
        self, header: wire.Header, channel: Channel, identity: str
    ) -> tuple[Relay, wire.Header]:
        """Let a client in: its session and the welcome, to which the front adds the data address.

        Parameters
        ----------
        identity
            Whom the binding found the client to be; ``loopback`` where there is no secret.

        Raises
        ------
        ProtocolError
            If it speaks another version.
        SetupError
            If there is no room, or this client is not admitted any more or comes too often.
        """
        self.standing.greet(identity)
        versions = wire.array(header.get("versions"), "versions", 64)
        if wire.VERSION not in versions:
            raise ProtocolError(
                f"this server speaks protocol version {wire.VERSION}, the client {versions}; "
                "bring both to the same release of tapml"
            )
        window = wire.integer(header.get("download_window"), "download window")
        asked = header.get("kernel_deadline")
        deadline = self.options.kernel_deadline
        if isinstance(asked, int | float) and 0 < asked <= _MAX_DEADLINE_SECONDS:
            deadline = min(deadline, float(asked))
        with self._lock:
            lease = self._lease_of(header, identity)
            if len(self._relays) >= self.bounds.sessions:
                raise SetupError(
                    f"all {self.bounds.sessions} sessions of this server are taken; "
                    "close one or try again later"
                )
            relay = Relay(
                token=secrets.token_bytes(TOKEN_BYTES),
                identity=identity,
                epoch=self.epoch,
                channel=channel,
                worker=self._pool.take(),
                bounds=self.bounds,
                kernel_deadline=deadline,
                silence_seconds=self.options.silence_seconds,
                download_credit=min(window, self.bounds.download_window),
                desk=self._desk(identity),
                lease=lease,
                turns=self._turns,
                on_end=self._forget,
            )
            self._relays[relay.token] = relay, time.monotonic()
        return relay, {
            "type": "welcome",
            "version": wire.VERSION,
            "features": [*FEATURES, *(["blobs"] if self.blobs is not None else [])],
            "server": f"tapml {package_version('tapml') or 'from source'}",
            "device": self._device,
            "bounds": self.bounds.to_wire(),
            "epoch": self.epoch,
            "session": relay.token,
            "kernel_deadline": deadline,
            "silence_seconds": self.options.silence_seconds,
        }

    def refill(self) -> None:
        """Start the next worker, so that the next client finds it open; takes milliseconds."""
        self._pool.refill()

    def relay(self, token: bytes) -> Relay:
        """The session of a token.

        Raises
        ------
        DeviceLostError
            If it has ended, or never was.
        """
        found = self._relays.get(token)
        if found is None:
            raise self.lost(token)
        return found[0]

    def lost(self, token: bytes, identity: str | None = None) -> DeviceLostError:
        """What is said of a session that is not there: why it ended, to those it belonged to."""
        owner, why, told = self._past.get(token, ("", "", None))
        if identity not in (None, owner):
            return lost_session()
        # What overtook the news of a loss is answered by the same.
        error = failure_from_wire(told) if told else None
        return error if isinstance(error, DeviceLostError) else lost_session(why)

    def sessions(self) -> list[dict[str, Any]]:
        """Every session as plain data, without what would let anyone speak for it."""
        now = time.monotonic()
        return [
            {
                "session": relay.token.hex()[:8],
                "identity": relay.identity,
                "seconds": round(now - began, 1),
                "device_bytes": relay.device_bytes,
                "busy_seconds": round(relay.busy_seconds(), 3),
                "worker": relay.pid,
            }
            for relay, began in list(self._relays.values())
        ]

    def lend(self, lease: HeldLease) -> None:
        """A tracker is about to lend the device; whoever has it without a lease keeps it.

        Raises
        ------
        SetupError
            If it is to be lent to one alone, and is in use.
        """
        with self._lock:
            if lease.exclusive and self._relays:
                raise SetupError(f"{len(self._relays)} sessions have this device without a lease")
            self._leases[lease.id] = lease

    def holder(self, token: str) -> str:
        """The identity of whoever a tracker gave the lease with this token; empty for nobody."""
        for lease in list(self._leases.values()):
            if secrets.compare_digest(lease.token.encode(), token.encode(errors="replace")):
                return lease.identity
        return ""

    def take_back(self, lease_id: str) -> None:
        """A lease is over: what its holder has here ends, and this waits a moment for it."""
        with self._lock:
            self._leases.pop(lease_id, None)
            relays = [relay for relay, _ in self._relays.values() if relay.lease == lease_id]
        for relay in relays:
            relay.revoke(
                "its holder's lease on the device is over: given back, or its tracker is gone"
            )
        deadline = time.monotonic() + _END_SECONDS
        while not all(relay.ended for relay in relays) and time.monotonic() < deadline:
            time.sleep(0.02)

    def load(self) -> dict[str, int]:
        """What the device is doing and keeps, for a tracker."""
        load: wire.Header = {}
        self.count(load)
        if self.blobs is not None:
            kept = self.blobs.statistics()
            load |= {
                "blobs": kept.blobs,
                "blob_bytes": kept.memory_bytes,
                "blobs_received": kept.received,
                "blobs_attached": kept.attached,
            }
        return load

    def count(self, pong: wire.Header) -> None:
        """Add to a session's pong what all of them hold."""
        relays = [relay for relay, _ in list(self._relays.values())]
        pong["sessions"] = len(relays)
        pong["device_bytes"] = sum(relay.device_bytes for relay in relays)

    def close(self) -> None:
        """End the spare worker; fronts have ended their sessions by now."""
        self.standing.close()
        self._pool.close()
        if self.blobs is not None:
            self.blobs.close()

    def _identities(self) -> list[tuple[str, Callable[[str], None]]]:
        return [(relay.identity, relay.revoke) for relay, _ in list(self._relays.values())]

    def _desk(self, identity: str) -> Any:
        if self.blobs is None:
            return None
        from tapml_rpc.blobs.messages import BlobDesk

        # One session does not take all there is for everybody.
        bound = min(self.bounds.session_bytes, self.options.blob_bytes // 2)
        return BlobDesk(self.blobs, identity, bound)

    def _lease_of(self, header: wire.Header, identity: str) -> str:
        """The lease a client comes with; raises SetupError where the device is another's.

        Whoever was let in by a lease is in a session under it or in none: the lease may have ended
        since, and a session without one would outlive it.
        """
        presented = wire.text(header.get("lease", ""), "lease", 64).encode()
        for lease in self._leases.values():
            if secrets.compare_digest(lease.token.encode(), presented):
                own = LEASE_IDENTITY + lease.identity
                if identity.startswith(LEASE_IDENTITY) and identity != own:
                    raise SetupError("this connection was opened under another holder's lease")
                return lease.id
        for lease in self._leases.values():
            if lease.exclusive:
                raise SetupError(
                    f"this device is lent to {lease.label}; ask its tracker for it, "
                    "`tapml devices --tracker ADDRESS` shows who has what"
                )
        if presented:
            raise SetupError("the lease this client came with is over; ask the tracker again")
        if identity.startswith(LEASE_IDENTITY):
            raise SetupError(
                "this connection was opened with a lease's token, and its hello names no lease; "
                "put the token into the hello's `lease` as well: connect(address, lease=TOKEN)"
            )
        return ""

    def _forget(self, relay: Relay) -> None:
        self._relays.pop(relay.token, None)
        self._past[relay.token] = relay.identity, relay.ended, relay.loss
        while len(self._past) > _PAST_SESSIONS:
            with suppress(KeyError, RuntimeError):
                self._past.pop(next(iter(self._past)))
