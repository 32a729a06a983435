"""Asking a tracker for a device, and waiting for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from tapml_rpc import wire
from tapml_rpc.failures import failure_from_wire
from tapml_rpc.security.credentials import KEY_VARIABLE, Credentials
from tapml_rpc.tracker.connection import (
    Connection,
    no_answer,
    open_connection,
    own_bindings,
    own_label,
)
from tapml_rpc.tracker.lease import Lease
from tapml_rpc.tracker.records import BEAT_SECONDS, VERSION, Count, Requirements, printable_all
from tapml_targets.errors import InputError, NoSuchDeviceError, SetupError, TapmlError

FIRST_ANSWER_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.2
_REQUEST: Final = 1
Text: TypeAlias = Annotated[str, Meta(max_length=4096)]


@dataclass(frozen=True)
class QueuePlace:
    """A request's place in the queue.

    `position` is 1 for the next one among those who could use the same devices. `devices` are name
    and holders of the suitable devices; if there are none, `known` are the names of the registered
    ones.
    """

    position: Count
    devices: Annotated[tuple[tuple[Text, Text], ...], Meta(max_length=64)]
    known: Annotated[tuple[Text, ...], Meta(max_length=64)]

    @property
    def own(self) -> bool:
        """Whether this process holds every suitable device, and so waits for itself."""
        own = own_label()
        return bool(self.devices) and all(holders == own for _, holders in self.devices)

    def __str__(self) -> str:
        if not self.devices:
            known = ", ".join(self.known) or "none"
            return f"no registered device meets the request (registered: {known}); waiting for one"
        busy = "; ".join(
            f"{name}, held by {holders}" if holders else f"{name}, not ready"
            for name, holders in self.devices
        )
        return f"number {self.position} in the queue for {busy}"


def request_device(
    tracker: str,
    *,
    name: str | None = None,
    kind: str | None = None,
    features: Iterable[str] = (),
    limits: Mapping[str, int] | None = None,
    timeout: float | None = None,
    absent_seconds: float | None = None,
    own_seconds: float | None = None,
    credentials: Credentials | None = None,
    on_queue: Callable[[QueuePlace], None] | None = None,
    on_lost: Callable[[TapmlError], None] | None = None,
    label: str = "",
) -> Lease:
    """Ask a tracker for a device, which nobody else has meanwhile, and wait for it.

    Parameters
    ----------
    tracker
        ``tcp://host:port``, or ``ws://host:port`` or ``wss://host:port`` of its WebSocket door.
    name, kind
        The device's name, its platform (``opencl``); None for any.
    features, limits
        Requirements, as in :class:`~tapml_rpc.tracker.records.Requirements`.
    timeout
        Seconds to wait for the device; None waits for ever.
    absent_seconds
        Seconds to wait while no registered device is suitable, free or not; None for `timeout`.
    own_seconds
        Seconds to wait while this process holds every suitable device; None for `timeout`, since
        another of its threads may give one back.
    credentials
        Keys, if the tracker asks for them: this side's own and the tracker's public one.
    on_queue
        Takes the place in the queue whenever it changes.
    on_lost
        Takes the error when the lease is lost, on another thread.
    label
        Who asks, for those who wait; by default user, host and process.

    Raises
    ------
    SetupError
        If no tracker answers, it ends meanwhile, or the device is not free within `timeout`.
    NoSuchDeviceError
        If no registered device is suitable within `timeout` or `absent_seconds`.
    InputError
        If a requirement's name is unknown, or this process holds the device after `own_seconds`.
    """
    wanted = Requirements.of(name or "", kind or "", features, limits)
    connection = open_connection(tracker, credentials, timeout=FIRST_ANSWER_SECONDS)
    try:
        connection.send(
            {
                "type": "request",
                "versions": [VERSION],
                "request": _REQUEST,
                "wanted": wanted.to_wire(),
                "label": label[:128] or own_label(),
                "bindings": own_bindings(),
            }
        )
        granted = _wait(connection, wanted, timeout, absent_seconds, own_seconds, on_queue)
        return Lease(connection, granted, on_lost)
    except BaseException:
        connection.close({"type": "goodbye"})
        raise


def _wait(
    connection: Connection,
    wanted: Requirements,
    timeout: float | None,
    absent_seconds: float | None,
    own_seconds: float | None,
    on_queue: Callable[[QueuePlace], None] | None,
) -> wire.Header:
    started = absent_since = own_since = time.monotonic()
    place: QueuePlace | None = None
    heard = False
    next_beat = started + BEAT_SECONDS
    while True:
        header = connection.receive(_POLL_SECONDS)
        now = time.monotonic()
        if header is not None:
            heard = heard or header.get("type") != "probe"
            if header.get("type") == "refused":
                raise failure_from_wire(header.get("error"))
            if header.get("type") == "granted":
                return header
            if header.get("type") == "queued":
                if place is not None and place.devices:
                    absent_since = now
                if place is None or not place.own:
                    own_since = now
                place = queue_place(header)
                if on_queue is not None:
                    on_queue(place)
            continue
        if not heard and now - started > FIRST_ANSWER_SECONDS:
            raise no_answer(connection.address, FIRST_ANSWER_SECONDS)
        # Before its first message it is unknown whether there is such a device.
        if timeout is not None and heard and now - started > timeout:
            raise _too_late(wanted, timeout, place)
        absent = place is not None and not place.devices
        if absent and absent_seconds is not None and now - absent_since > absent_seconds:
            raise _too_late(wanted, absent_seconds, place)
        own = place is not None and place.own
        if own and own_seconds is not None and now - own_since > own_seconds:
            raise InputError(
                f"{wanted} is held by this very process, which would wait for itself ({place}); "
                "name each device once"
            )
        if now >= next_beat:
            connection.send({"type": "renew", "leases": []})
            next_beat = now + BEAT_SECONDS


def queue_place(header: wire.Header) -> QueuePlace:
    """Check a tracker's answer to who waits; raises ProtocolError."""
    return wire.record(printable_all(header), QueuePlace, "a place in the queue")


def _too_late(wanted: Requirements, timeout: float, place: QueuePlace | None) -> TapmlError:
    if place is not None and not place.devices:
        return NoSuchDeviceError(
            f"the tracker has not had {wanted} for {timeout:g} s; registered are "
            f"{', '.join(place.known) or 'no devices'}. `tapml devices` shows what they have"
        )
    return SetupError(
        f"{wanted} was not free within {timeout:g} s ({place or 'no place in the queue'}); "
        "wait longer, or ask for another"
    )


TRACKER_KEY_VARIABLE: Final = "TAPML_TRACKER_KEY"
TOKEN_VARIABLE: Final = "TAPML_TRACKER_TOKEN"  # noqa: S105 - a variable's name
CA_VARIABLE: Final = "TAPML_TRACKER_CA"
FINGERPRINT_VARIABLE: Final = "TAPML_TRACKER_FINGERPRINT"


def tracker_credentials(
    address: str, environ: Mapping[str, str] = os.environ
) -> Credentials | None:
    """Secrets for a tracker, as the environment names them; None if it names none.

    ``TAPML_TRACKER_KEY`` is the tracker's public key or the path of one, ``TAPML_RPC_KEY`` the
    path of this side's own ``.secret`` file. Over WebSocket: ``TAPML_TRACKER_TOKEN`` is the
    tracker's token, ``TAPML_TRACKER_FINGERPRINT`` its certificate's fingerprint,
    ``TAPML_TRACKER_CA`` the path of certificates to trust; the keys, which need pyzmq, are not
    read. Raises InputError if a file is missing or damaged, or one of two keys; SetupError if
    others may read the secret.
    """
    theirs, token, ca_file, fingerprint = (
        environ.get(name) or None
        for name in (TRACKER_KEY_VARIABLE, TOKEN_VARIABLE, CA_VARIABLE, FINGERPRINT_VARIABLE)
    )
    if address.startswith(("ws://", "wss://")):
        theirs = None
    if not any((theirs, token, ca_file, fingerprint)):
        return None
    files = Credentials.from_files(
        key=environ.get(KEY_VARIABLE) or None if theirs else None,
        server_key=theirs,
        ca_file=ca_file,
        fingerprint=fingerprint,
    )
    return replace(files, token=token)
