"""Who gets which device: offers, leases and the queue, without sockets or a clock.

A lease is *offered* to the device first, so that the device knows the holder before the holder
knows the device; it is *held* once the device has accepted it, and *clearing* from its end until
the device has ended what the holder had there. A device that does not answer in one of these phases
is skipped for a while instead of being busy for ever.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable
from typing import Final

from tapml_rpc import wire
from tapml_rpc.tracker.records import (
    LEASE_SECONDS,
    MAX_LEASES,
    MAX_PER_CLIENT,
    MAX_WAITING,
    Clock,
    Device,
    Lease,
    Outlet,
    Waiting,
    failure,
)
from tapml_targets.errors import InputError, SetupError

OFFER_SECONDS: Final = 2.0
CLEAR_SECONDS: Final = 2.0
SHUN_SECONDS: Final = 2.0
_SHOWN: Final = 8


class Leases:
    """Leases and the queue for them; the registry maintains `devices`, by name.

    `changed` says that a device may have become free, or a request may have come: the next
    :meth:`tick` makes offers, once for all messages since the last, because it goes through every
    request and every device.
    """

    def __init__(self, devices: dict[str, Device], outlet: Outlet, clock: Clock) -> None:
        self._devices = devices
        self._outlet = outlet
        self._clock = clock
        self._waiting: list[Waiting] = []
        self._leases: dict[str, Lease] = {}
        self._arrivals = 0
        self._next_look = math.inf
        self.changed = False

    def request(self, waiting: Waiting) -> None:
        """Queue a request; raises SetupError if the queue is full, or InputError."""
        if len(self._waiting) >= MAX_WAITING or len(self._leases) >= MAX_LEASES:
            raise SetupError(
                f"{len(self._waiting)} requests wait and {len(self._leases)} leases are held; "
                "this tracker takes no more"
            )
        others = [*self._waiting, *(lease.request for lease in self._leases.values())]
        numbers = [each.number for each in others if each.sender.key == waiting.sender.key]
        if len(numbers) >= MAX_PER_CLIENT:
            raise SetupError(f"this connection already has {len(numbers)} requests and leases")
        if waiting.number in numbers:
            raise InputError(f"request {waiting.number} is under way on this connection already")
        self._arrivals += 1
        waiting.order = self._arrivals
        self._waiting.append(waiting)
        self.changed = True

    def cancel(self, key: bytes, number: int) -> None:
        """Forget a request that is not granted yet; no effect if there is none."""
        self._waiting = [w for w in self._waiting if (w.sender.key, w.number) != (key, number)]
        for lease in list(self._leases.values()):
            request = lease.request
            if (request.sender.key, request.number) == (key, number) and lease.phase == "offered":
                self._end(lease, "the client no longer waits")
        self.changed = True

    def release(self, key: bytes, lease_id: str) -> None:
        """End a lease as its holder asks; no effect for anybody else's."""
        lease = self._leases.get(lease_id)
        if lease is not None and lease.request.sender.key == key:
            self._end(lease, "released")
            self.changed = True

    def renew(self, key: bytes, lease_ids: Iterable[str]) -> None:
        """Note that a holder is alive and report which leases it no longer holds."""
        for lease_id in lease_ids:
            lease = self._leases.get(lease_id)
            if lease is None or lease.request.sender.key != key or lease.phase == "clearing":
                self._tell_ended(key, lease_id, "InputError", "this tracker knows no such lease")
            elif lease.phase == "held":
                lease.deadline = self._clock() + LEASE_SECONDS

    def accepted(self, device: Device, lease_id: str) -> None:
        """The device has accepted: its holder is sent the address."""
        lease = device.leases.get(lease_id)
        if lease is None or lease.phase != "offered":
            return
        lease.phase = "held"
        lease.deadline = self._clock() + LEASE_SECONDS
        self._outlet.open_relay(lease)
        self._outlet.send(
            lease.request.sender.key,
            {
                "type": "granted",
                "request": lease.request.number,
                "lease": lease.id,
                "token": lease.token,
                "exclusive": True,
                "name": device.name,
                "device": device.plain,
                "address": lease.address,
                "server_key": device.server_key,
                "certificate": device.certificate,
                "expires_seconds": LEASE_SECONDS,
            },
        )

    def declined(self, device: Device, lease_id: str) -> None:
        """The device declines: the request goes back to its place."""
        lease = device.leases.get(lease_id)
        if lease is not None and lease.phase == "offered":
            self._take_back(lease)
            self.changed = True

    def cleared(self, device: Device, lease_id: str) -> None:
        """The device has ended everything of an ended lease."""
        lease = device.leases.get(lease_id)
        if lease is not None and lease.phase == "clearing":
            self._forget(lease)
            self.changed = True

    def peer_gone(self, key: bytes, why: str) -> None:
        """A client's connection is gone: what it held and asked for ends."""
        self._waiting = [waiting for waiting in self._waiting if waiting.sender.key != key]
        for lease in list(self._leases.values()):
            if lease.request.sender.key == key:
                self._end(lease, why)

    def device_gone(self, device: Device, why: str) -> None:
        """A device is gone: holders are notified, offers go back to their place."""
        for lease in list(device.leases.values()):
            if lease.phase == "offered":
                self._take_back(lease)
                continue
            if lease.phase == "held":
                message = f"the device {device.name!r} is gone: {why}"
                key = lease.request.sender.key
                self._tell_ended(key, lease.id, "DeviceLostError", message)
                self._outlet.close_relay(lease)
            self._forget(lease)

    def tick(self) -> None:
        """End the phases whose time is over."""
        now = self._clock()
        late = [lease for lease in self._leases.values() if now > lease.deadline]
        for lease in late:
            if lease.phase == "offered":
                self._take_back(lease)
            elif lease.phase == "held":
                why = f"not renewed for {LEASE_SECONDS:g} s"
                self._tell_ended(
                    lease.request.sender.key, lease.id, "DeviceLostError", f"the lease was {why}"
                )
                self._end(lease, why)
            else:
                lease.device.shunned_until = now + SHUN_SECONDS
                self._forget(lease)
        if late or self.changed or now >= self._next_look:
            self._schedule(now)

    def excuse(self, seconds: float) -> None:
        """Add to every deadline the time in which the tracker itself was stopped."""
        for lease in self._leases.values():
            lease.deadline += seconds

    def _schedule(self, now: float) -> None:
        """Offer free devices to the waiting requests in order, and send the others their place.

        A request that cannot be met yet reserves every device it could use against later ones.
        """
        self.changed = False
        self._next_look = math.inf
        self._waiting.sort(key=lambda waiting: waiting.order)
        reserved: set[str] = set()
        ahead: list[frozenset[str]] = []
        left: list[Waiting] = []
        for waiting in self._waiting:
            matching = self._matching(waiting)
            free = [
                device
                for device in matching
                if device.name not in reserved and not device.leases and now >= device.shunned_until
            ]
            if free:
                self._offer(min(free, key=_busyness), waiting, now)
                continue
            names = frozenset(device.name for device in matching)
            position = 1 + sum(not names.isdisjoint(other) for other in ahead)
            ahead.append(names)
            reserved |= names
            self._next_look = min(
                [self._next_look, *(d.shunned_until for d in matching if d.shunned_until > now)]
            )
            left.append(waiting)
            self._tell_place(waiting, position, matching)
        self._waiting = left

    def queue(self) -> list[dict[str, object]]:
        """The waiting requests in order, as plain data."""
        return [
            {"label": waiting.label, "wanted": str(waiting.wanted), "exclusive": True}
            for waiting in self._waiting
        ]

    def peers(self) -> set[bytes]:
        """The connections that leases and requests depend on."""
        held = {lease.request.sender.key for lease in self._leases.values()}
        return held | {waiting.sender.key for waiting in self._waiting}

    def held(self, lease_id: str) -> Lease | None:
        """A lease that is held; None for none."""
        lease = self._leases.get(lease_id)
        return lease if lease is not None and lease.phase == "held" else None

    def _matching(self, waiting: Waiting) -> list[Device]:
        return [
            device
            for device in self._devices.values()
            if not waiting.wanted.unmet(device.name, device.description)
            and device.address_for(waiting)
        ]

    def _offer(self, device: Device, waiting: Waiting, now: float) -> None:
        lease = Lease(
            id=secrets.token_hex(8),
            token=secrets.token_hex(16),
            device=device,
            request=waiting,
            since=now,
            address=device.address_for(waiting),
            deadline=now + OFFER_SECONDS,
        )
        self._leases[lease.id] = device.leases[lease.id] = lease
        self._outlet.send(
            device.sender.key,
            {
                "type": "lease",
                "lease": lease.id,
                "token": lease.token,
                "exclusive": True,
                "identity": waiting.sender.identity,
                "label": waiting.label,
            },
        )

    def _take_back(self, lease: Lease) -> None:
        lease.device.shunned_until = self._clock() + SHUN_SECONDS
        self._outlet.send(lease.device.sender.key, _ended_message(lease, "taken back"))
        self._forget(lease)
        self._waiting.append(lease.request)

    def _end(self, lease: Lease, why: str) -> None:
        if lease.phase == "clearing":
            return
        lease.phase = "clearing"
        lease.deadline = self._clock() + CLEAR_SECONDS
        self._outlet.close_relay(lease)
        self._outlet.send(lease.device.sender.key, _ended_message(lease, why))

    def _forget(self, lease: Lease) -> None:
        self._leases.pop(lease.id, None)
        lease.device.leases.pop(lease.id, None)

    def _tell_ended(self, key: bytes, lease_id: str, kind: str, message: str) -> None:
        error = failure(kind, message)
        self._outlet.send(key, {"type": "lease-ended", "lease": lease_id, "error": error})

    def _tell_place(self, waiting: Waiting, position: int, matching: list[Device]) -> None:
        # A device's holder is no secret among those who may ask for it.
        busy = [
            [device.name, ", ".join(lease.request.label for lease in device.leases.values())]
            for device in matching[:_SHOWN]
        ]
        known = [] if matching else sorted(self._devices)[: 2 * _SHOWN]
        told = (position, repr(busy), repr(known))
        if told != waiting.told:
            waiting.told = told
            place: wire.Header = {"type": "queued", "request": waiting.number, "position": position}
            self._outlet.send(waiting.sender.key, {**place, "devices": busy, "known": known})


def _busyness(device: Device) -> tuple[int, int, str]:
    return device.load.get("sessions", 0), device.load.get("device_bytes", 0), device.name


def _ended_message(lease: Lease, why: str) -> wire.Header:
    return {"type": "lease-ended", "lease": lease.id, "why": why}
