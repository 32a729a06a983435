"""What all fronts of a supervisor share: admission, the sessions, the workers, the blobs."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tapml_rpc import wire
from tapml_rpc.blobs.memory import PAGE_BYTES
from tapml_rpc.blobs.messages import BlobRequests
from tapml_rpc.blobs.store import BlobStore
from tapml_rpc.device.session_state import EPOCH_BYTES, TOKEN_BYTES
from tapml_rpc.failures import failure_from_wire, lost_session
from tapml_rpc.security.keys import is_key
from tapml_rpc.security.standing import LEASE_IDENTITY, Standing
from tapml_rpc.supervisor.options import SupervisorOptions
from tapml_rpc.supervisor.relay import Company, Relay
from tapml_rpc.supervisor.relayed import Channel
from tapml_rpc.supervisor.worker_process import Start, WorkerPool
from tapml_rpc.welcome import Bounds
from tapml_targets.description import to_plain
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import DeviceLostError, ProtocolError, SetupError
from tapml_targets.installed import package_version

if TYPE_CHECKING:
    from tapml_rpc.tracker.lent import HeldLease

# Kept by hash in any case: Libraries take no other way.
_LIBRARIES_BYTES: Final = 64 << 20
# The part of it that one session leaves to the others.
_LEFT_TO_OTHERS: Final = 4
_MAX_DEADLINE_SECONDS: Final = 86400
_END_SECONDS: Final = 1.5
_LOOK_SECONDS: Final = 0.1
_PAST_SESSIONS: Final = 64
# A session's first commands need the processor more than the next session's worker does.
_REFILL_SECONDS: Final = 1.0


class Hub:
    """The supervisor's state. `hello` and `count` may be called from any thread.

    `epoch` is random and identifies this supervisor's lifetime. `standing` decides whether admitted
    clients may stay; the fronts add their lists to it. Raises SetupError if the folder for blobs
    cannot be used.
    """

    def __init__(self, device: DeviceDescription, options: SupervisorOptions) -> None:
        self.device = device
        self.options = options
        self.epoch = secrets.token_bytes(EPOCH_BYTES)
        bounds = Bounds()
        folder = Path(options.blob_folder).expanduser() if options.blob_folder else None
        blob_bytes = max(options.blob_bytes, _LIBRARIES_BYTES)
        self.blobs = BlobStore(blob_bytes, options.blob_disk_bytes, folder)
        # One session may bring any one Library, and must leave others room for theirs.
        budget = self.blobs.memory_budget
        most = min(max(budget // 2, bounds.library_bytes), budget - budget // _LEFT_TO_OTHERS)
        most -= most % PAGE_BYTES
        self.bounds = replace(
            bounds,
            library_bytes=min(bounds.library_bytes, most),
            session_bytes=options.session_bytes or bounds.session_bytes,
        )
        # Weights beyond what a session may hold need not be kept; a Library takes no other way.
        self._blob_bound = max(min(self.bounds.session_bytes, most), self.bounds.library_bytes)
        self._device = to_plain(device)
        self._relays: dict[bytes, Relay] = {}
        # Whose the latest sessions were, why they ended, and the error each client was sent. Not an
        # exception: a raised one keeps its frames, and everything they refer to.
        self._past: dict[bytes, tuple[str, str, dict[str, Any] | None]] = {}
        self._lock = threading.Lock()
        self._leases: dict[str, HeldLease] = {}
        self._company = Company()
        self.standing = Standing(self._identities)
        self._pool = WorkerPool(device, allow_native=options.allow_shared_libraries)

    def start(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Open the device in a first worker, before any client is admitted; False if `stop` first.

        Raises TapmlError if it does not open.
        """
        start = self._pool.prepare()
        while not wait([start], _LOOK_SECONDS).done:
            if stop():
                return False
        try:
            start.result().wait_until_open(stop=stop)
        except SetupError:
            if not stop():
                raise
            return False
        return True

    def hello(
        self, header: wire.Header, channel: Channel, identity: str, waited: Start | None = None
    ) -> tuple[Relay, wire.Header]:
        """Admit a client: its session and the welcome, to which the front adds the data address.

        `identity` is what the binding verified, ``loopback`` if there is no secret. Raises
        ProtocolError for another version, SetupError if there is no room, or the client is no
        longer admitted or comes too often; and NoWorkerYetError, whose start is `waited` then.
        """
        if waited is None:
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
                worker=self._pool.take(identity, waited),
                bounds=self.bounds,
                kernel_deadline=deadline,
                silence_seconds=self.options.silence_seconds,
                download_credit=min(window, self.bounds.download_window),
                blobs=BlobRequests(self.blobs, identity, self._blob_bound),
                lease=lease,
                company=self._company,
                keep=partial(self._pool.keep, identity, still=partial(self._holds, lease)),
                on_end=self._forget,
            )
            self._relays[relay.token] = relay
        return relay, {
            "type": "welcome",
            "version": wire.VERSION,
            "features": [wire.BLOBS] if self.options.blob_bytes else [],
            "server": f"tapml {package_version('tapml') or 'from source'}",
            "device": self._device,
            "bounds": self.bounds.to_wire(),
            "epoch": self.epoch,
            "session": relay.token,
            "kernel_deadline": deadline,
            "silence_seconds": self.options.silence_seconds,
        }

    def refill(self) -> None:
        """Start the next worker soon: the next client finds the device open."""
        self._pool.prepare(_REFILL_SECONDS)

    def lost(self, token: bytes, identity: str) -> DeviceLostError:
        """The error for a session that has ended; its reason only for its own identity."""
        owner, why, told = self._past.get(token, ("", "", None))
        if identity != owner:
            return lost_session()
        # Messages that crossed the report of a loss get the same answer.
        error = failure_from_wire(told) if told else None
        return error if isinstance(error, DeviceLostError) else lost_session(why)

    def lend(self, lease: HeldLease) -> None:
        """Prepare for a tracker's lease; raises SetupError if the device is in use."""
        with self._lock:
            if self._relays:
                raise SetupError(f"{len(self._relays)} sessions have this device without a lease")
            self._leases[lease.id] = lease
        self._pool.drop()

    def holder(self, token: str) -> str:
        """The identity that holds the lease with this token; empty for none."""
        for lease in list(self._leases.values()):
            if secrets.compare_digest(lease.token.encode(), token.encode(errors="replace")):
                return lease.identity
        return ""

    def take_back(self, lease_id: str) -> None:
        """A lease is over: end its sessions, and wait a moment for that."""
        with self._lock:
            self._leases.pop(lease_id, None)
            relays = [relay for relay in self._relays.values() if relay.lease == lease_id]
        for relay in relays:
            relay.revoke(
                "its holder's lease on the device is over: given back, or its tracker is gone"
            )
        deadline = time.monotonic() + _END_SECONDS
        while not all(relay.ended for relay in relays) and time.monotonic() < deadline:
            time.sleep(0.02)
        self._pool.drop()

    def load(self) -> dict[str, int]:
        """What the device is doing and keeps, for a tracker."""
        load: wire.Header = {}
        self.count(load)
        kept = self.blobs.statistics()
        return load | {
            "blobs": kept.blobs,
            "blob_bytes": kept.memory_bytes,
            "blobs_received": kept.received,
            "blobs_attached": kept.attached,
        }

    def count(self, pong: wire.Header) -> None:
        """Add the totals of all sessions to a pong."""
        relays = list(self._relays.values())
        pong["sessions"] = len(relays)
        pong["device_bytes"] = sum(relay.device_bytes for relay in relays)

    def close(self) -> None:
        """End the spare worker; the fronts have ended their sessions."""
        self.standing.close()
        self._pool.close()
        self.blobs.close()

    def _identities(self) -> list[tuple[str, Callable[[str], None]]]:
        return [(relay.identity, relay.revoke) for relay in list(self._relays.values())]

    def _lease_of(self, header: wire.Header, identity: str) -> str:
        """The lease of a client; raises SetupError if the device is lent to another key.

        Only the key that holds a lease may use it, whoever else has come by its token. A client
        that was admitted by a lease gets its session only under that lease: a session without one
        would outlive it.
        """
        presented = wire.text(header.get("lease", ""), "lease", 64).encode()
        for lease in self._leases.values():
            if secrets.compare_digest(lease.token.encode(), presented):
                own = LEASE_IDENTITY + lease.identity
                if identity.startswith(LEASE_IDENTITY) and identity != own:
                    raise SetupError("this connection was opened under another holder's lease")
                if is_key(identity) and is_key(lease.identity) and identity != lease.identity:
                    raise SetupError(
                        "this lease belongs to another key: expected the key that asked the "
                        "tracker for the device; connect with that one, or ask for a lease with "
                        "this one"
                    )
                return lease.id
        if identity.startswith(LEASE_IDENTITY) and not presented:
            raise SetupError(
                "this connection was opened with a lease's token, and its hello names no lease; "
                "put the token into the hello's `lease` as well: connect(address, lease=TOKEN)"
            )
        for lease in self._leases.values():
            raise SetupError(
                f"this device is lent to {lease.label}; ask its tracker for it, "
                "`tapml devices --tracker ADDRESS` shows who has what"
            )
        if presented:
            raise SetupError("the lease this client came with is over; ask the tracker again")
        return ""

    def _holds(self, lease: str) -> bool:
        """Whether a session under a lease, or under no lease, would be let in still."""
        return lease in self._leases if lease else not self._leases

    def _forget(self, relay: Relay) -> None:
        self._relays.pop(relay.token, None)
        self._past[relay.token] = relay.identity, relay.ended, relay.loss
        while len(self._past) > _PAST_SESSIONS:
            with suppress(KeyError, RuntimeError):
                self._past.pop(next(iter(self._past)))
