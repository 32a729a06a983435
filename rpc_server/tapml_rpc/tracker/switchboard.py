"""Joins connections of a relay: by a lease's secret, and a stream's.

A client connects with its lease's token and waits; the device is asked to connect, and does so with
a secret that is valid once. What both send is the door's affair (:mod:`tapml_rpc.tracker.door`).
Everything runs on a forwarder's thread.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from tapml_rpc.flow import Endpoint, Flow, Forwarder

ROLES: Final = ("control", "data")
DIAL_SECONDS: Final = 5.0
MAX_FLOWS: Final = 256
MAX_FLOWS_OF_LEASE: Final = 8

Dial = Callable[[str, str, str], None]
"""Asks a device to connect: lease id, stream, role."""


class Refusal(Enum):
    """Why two connections are not joined."""

    NO_ROOM = "the relay has no room"
    NO_SUCH = "the lease has ended, or never was"
    UNREACHABLE = "the device did not come to the relay"


class Caller(Protocol):
    """A connection that is not joined yet."""

    def grant(self) -> Endpoint:
        """Report that it is joined, and become an endpoint; raises OSError if it has gone."""

    def refuse(self, why: Refusal | None) -> None:
        """Report the reason, if there is one, and end it; a second call does nothing."""


@dataclass(frozen=True)
class _Waiting:
    caller: Caller
    lease_id: str
    deadline: float


class Switchboard:
    """Joins callers on `forwarder`; `dial` asks a device to connect within `dial_seconds`."""

    def __init__(
        self, forwarder: Forwarder, dial: Dial, *, dial_seconds: float = DIAL_SECONDS
    ) -> None:
        self._forwarder = forwarder
        self._dial = dial
        self._dial_seconds = dial_seconds
        self._leases: dict[str, str] = {}
        self._flows: dict[str, set[Flow]] = {}
        self._waiting: dict[str, _Waiting] = {}

    def allow(self, lease_id: str, token: str) -> None:
        """Admit `token`."""
        self._leases[token] = lease_id

    def cut(self, lease_id: str, token: str) -> None:
        """Cut the connections of a lease, and admit no more."""
        self._leases.pop(token, None)
        for flow in self._flows.pop(lease_id, ()):
            self._forwarder.end(flow)
        for waiting in [each for each in self._waiting.values() if each.lease_id == lease_id]:
            waiting.caller.refuse(Refusal.NO_SUCH)

    def knows(self, secret: str) -> bool:
        """Whether it is a lease's token, or the secret of a stream that is waited for."""
        return secret in self._leases or secret in self._waiting

    def call(self, caller: Caller, token: str, role: str) -> None:
        """A client requests its device."""
        lease_id = self._leases.get(token)
        if lease_id is None or role not in ROLES:
            caller.refuse(Refusal.NO_SUCH)
            return
        waiting = sum(other.lease_id == lease_id for other in self._waiting.values())
        if (
            len(self._open_flows(lease_id)) + waiting >= MAX_FLOWS_OF_LEASE
            or len(self._forwarder.flows) >= MAX_FLOWS
        ):
            caller.refuse(Refusal.NO_ROOM)
            return
        stream = secrets.token_hex(16)
        self._waiting[stream] = _Waiting(caller, lease_id, time.monotonic() + self._dial_seconds)
        self._dial(lease_id, stream, role)

    def answer(self, device: Caller, stream: str) -> None:
        """A device has connected for a client."""
        waiting = self._waiting.pop(stream, None)
        if waiting is None:
            device.refuse(Refusal.NO_SUCH)
            return
        try:
            flow = Flow(waiting.caller.grant(), device.grant())
        except OSError:
            waiting.caller.refuse(None)
            device.refuse(None)
            return
        self._open_flows(waiting.lease_id).add(flow)
        self._forwarder.add(flow)

    def gone(self, caller: Caller) -> None:
        """A client no longer waits."""
        for stream in [key for key, each in self._waiting.items() if each.caller is caller]:
            del self._waiting[stream]

    def refuse_late(self) -> None:
        """Refuse those whose device has not come; call it a few times a second."""
        now = time.monotonic()
        for waiting in [each for each in self._waiting.values() if now > each.deadline]:
            waiting.caller.refuse(Refusal.UNREACHABLE)

    def _open_flows(self, lease_id: str) -> set[Flow]:
        flows = self._flows.setdefault(lease_id, set())
        flows -= {flow for flow in flows if flow.ended}
        return flows
