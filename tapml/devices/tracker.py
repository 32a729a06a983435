"""Devices of a tracker, as a user names them.

A spec is ``tracker`` for any device, or ``tracker:pixel``. After the colon comes a device's name,
or requirements separated by commas:
``tracker:kind=opencl,feature=float16,min_buffer_bytes=268435456``. ``wait=60`` among them
is how many seconds to wait for the device.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from tapml_rpc.security.credentials import KEY_VARIABLE, Credentials
from tapml_rpc.tracker.lease import Lease
from tapml_rpc.tracker.records import LIMITS, is_device_name, on_this_machine
from tapml_rpc.tracker.request import QueuePlace, request_device, tracker_credentials
from tapml_targets.errors import InputError
from tapml_targets.platforms import DEFAULT_PLATFORM

VARIABLE: Final = "TAPML_TRACKER"
ABSENT_SECONDS: Final = 60.0
"""Seconds to wait for a device that is not registered, if a spec does not say."""

_WORD: Final = "tracker"
_WAIT: Final = "wait"


def tracker_address(given: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """The tracker that was given, else ``TAPML_TRACKER``; raises InputError without either."""
    address = given or environ.get(VARIABLE, "")
    if not address:
        raise InputError(
            f"no tracker is known: set {VARIABLE} to its tcp://HOST:PORT or ws://HOST:PORT "
            "(`tapml devices` takes --tracker as well)"
        )
    return address


def device_credentials(lease: Lease, environ: Mapping[str, str] = os.environ) -> Credentials:
    """Secrets for a device that was lent: the environment's own, and the key that the lease names.

    Raises InputError if a file is missing or damaged, or this side has a key, and the device,
    on another machine, has none; SetupError if others may read the secret.
    """
    found = Credentials.from_environment(environ, lent_key=lease.server_key)
    keyless = found is None or found.keys is None
    way = lease.address.removeprefix("relay+")
    readable = not way.startswith("wss://") and not on_this_machine(way)
    if environ.get(KEY_VARIABLE) and keyless and readable:
        raise InputError(
            f"the device {lease.name!r} has no keys, and what is sent to it could be read on its "
            f"way, while {KEY_VARIABLE} says that this client has some: serve it with --key"
        )
    return lease.credentials(found) or Credentials()


def parse_spec(spec: str) -> dict[str, Any]:
    """A spec as arguments of :func:`request_device`, and ``wait``; raises InputError."""
    word, _, rest = spec.partition(":")
    if word != _WORD:
        raise InputError(
            f"expected {_WORD}, {_WORD}:NAME or {_WORD}:kind={DEFAULT_PLATFORM}, got {spec!r}"
        )
    if not rest:
        return {}
    parts = rest.split(",")
    asked: dict[str, Any] = {}
    if "=" not in parts[0]:
        asked["name"] = parts.pop(0)
        if not is_device_name(asked["name"]):
            raise InputError(f"expected a device's name after {_WORD}:, got {asked['name']!r}")
        if not parts:
            return asked
    asked |= {"features": [], "limits": {}}
    for part in parts:
        key, _, value = part.partition("=")
        number = value.isascii() and value.isdigit() and len(value) < 19
        if key in ("kind", "name") and value and key not in asked:
            asked[key] = value
        elif key == "feature" and value:
            asked["features"].append(value)
        elif key in LIMITS and number:
            asked["limits"][key] = int(value)
        elif key == _WAIT and number and key not in asked:
            asked[key] = int(value)
        else:
            raise InputError(
                f"{part!r} of {spec!r} is unknown; expected kind=, name= (once each), "
                f"feature=, {'=, '.join(LIMITS)}= and a number, {_WAIT}= and seconds"
            )
    return asked


def resolve(
    spec: str,
    tracker: str | None = None,
    *,
    timeout: float | None = None,
    own_seconds: float | None = None,
    credentials: Credentials | None = None,
    on_queue: Callable[[QueuePlace], None] | None = None,
) -> Lease:
    """Lease the device that a spec names; the arguments are those of :func:`request_device`.

    Without `credentials` they are those of :func:`tracker_credentials`. The ``wait`` of a spec
    is its `timeout`; without either a device that is held is waited for as long as it takes,
    and one that is not registered for :data:`ABSENT_SECONDS`. Raises as :func:`request_device`
    does, and InputError if the spec is malformed, or no tracker is known.
    """
    asked = parse_spec(spec)
    seconds = asked.pop(_WAIT, timeout)
    address = tracker_address(tracker)
    return request_device(
        address,
        timeout=seconds,
        absent_seconds=ABSENT_SECONDS if seconds is None else None,
        own_seconds=own_seconds,
        credentials=credentials or tracker_credentials(address),
        on_queue=on_queue,
        **asked,
    )
