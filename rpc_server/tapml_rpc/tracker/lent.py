"""The leases on a device, on the device's side: who may use it, and what ends with each."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tapml_rpc import wire
from tapml_rpc.failures import failure_to_wire
from tapml_rpc.standard_error import print_fault
from tapml_rpc.tracker.outbound import Call, Outbound
from tapml_rpc.tracker.records import Phrase, Word
from tapml_targets.errors import SetupError, TapmlError

_MAX_LEASES: Final = 64
_ID_CHARACTERS: Final = 64


@dataclass(frozen=True)
class HeldLease:
    """A lease on this device.

    Its holder presents the secret `token`. `identity` is the public key that the holder proved to
    the tracker, or ``loopback``; `label` is the holder's own description.
    """

    id: Word
    token: Word = field(repr=False)
    identity: Phrase
    label: Phrase


class Lent:
    """The leases that a tracker has on this device now.

    The callbacks are those of :class:`~tapml_rpc.tracker.registration.Registration`. `outbound`
    dials the relay, if clients come through it. `wake` is called from any thread when
    :meth:`cleared` has news.
    """

    def __init__(
        self,
        on_lease: Callable[[HeldLease], None] | None,
        on_lease_ended: Callable[[str], None] | None,
        outbound: Outbound | None,
        wake: Callable[[], None],
    ) -> None:
        self._on_lease = on_lease
        self._on_lease_ended = on_lease_ended
        self._outbound = outbound
        self._wake = wake
        self._leases: dict[str, HeldLease] = {}
        self._cleared: deque[str] = deque()

    def take(self, header: wire.Header) -> wire.Header:
        """Accept or decline a lease: the answer; raises ProtocolError for a malformed message."""
        lease = wire.record({**header, "id": header.get("lease")}, HeldLease, "a lease")
        try:
            if len(self._leases) >= _MAX_LEASES:
                raise SetupError(f"this device has {_MAX_LEASES} leases already")
            if self._on_lease is not None:
                self._on_lease(lease)
        except TapmlError as error:
            return {"type": "lease-declined", "lease": lease.id, "error": failure_to_wire(error)}
        self._leases[lease.id] = lease
        return {"type": "lease-accepted", "lease": lease.id}

    def dial(self, header: wire.Header, host: str) -> None:
        """Dial the relay on `host` for a client that waits there."""
        lease_id = wire.text(header.get("lease"), "lease", _ID_CHARACTERS)
        stream = wire.text(header.get("stream"), "stream", _ID_CHARACTERS)
        role = wire.text(header.get("role"), "role", _ID_CHARACTERS)
        port = wire.integer(header.get("relay_port", 0), "relay port", 65535)
        lease = self._leases.get(lease_id)
        if self._outbound is not None and lease is not None:
            self._outbound.dial(Call(lease_id, lease.token, stream, role, (host, port)))

    def end(self, lease_id: str) -> None:
        """End a lease and what runs under it; :meth:`cleared` reports when that is done."""
        lease = self._leases.pop(lease_id, None)
        if self._outbound is not None:
            self._outbound.cut(lease_id)
        if lease is None or self._on_lease_ended is None:
            self._cleared.append(lease_id)
            return
        # It may take as long as a worker takes to end, and the heartbeat must not wait.
        threading.Thread(
            target=self._clear, args=(lease_id,), name="tapml-clear", daemon=True
        ).start()

    def end_all(self) -> None:
        """End every lease: the tracker that knew about them is gone."""
        for lease_id in list(self._leases):
            self.end(lease_id)
        self._cleared.clear()

    def cleared(self) -> list[str]:
        """The leases of which nothing is left, each once."""
        done = []
        while self._cleared:
            done.append(self._cleared.popleft())
        return done

    def close(self) -> None:
        """End every lease, and the connections to the relay."""
        self.end_all()
        if self._outbound is not None:
            self._outbound.close()

    def _clear(self, lease_id: str) -> None:
        try:
            if self._on_lease_ended is not None:
                self._on_lease_ended(lease_id)
        except Exception as error:
            print_fault(error)
        self._cleared.append(lease_id)
        self._wake()
