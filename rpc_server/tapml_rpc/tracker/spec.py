"""Devices of a tracker as a user names them: ``tracker`` for any, or ``tracker:pixel``.

After the colon comes a device's name, or requirements separated by commas:
``tracker:kind=opencl,feature=float16,min_buffer_bytes=268435456``. ``wait=60`` among them, as in
``tracker:pixel,wait=60``, is how many seconds to wait for the device.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

from tapml_rpc.security.bind import is_loopback
from tapml_rpc.security.credentials import KEY_VARIABLE, Credentials
from tapml_rpc.tracker.lease import Lease
from tapml_rpc.tracker.records import is_device_name
from tapml_rpc.tracker.request import QueuePlace, request_device
from tapml_rpc.tracker.requirements import LIMITS
from tapml_targets.errors import InputError
from tapml_targets.platforms import DEFAULT_PLATFORM

VARIABLE: Final = "TAPML_TRACKER"
TRACKER_KEY_VARIABLE: Final = "TAPML_TRACKER_KEY"
TOKEN_VARIABLE: Final = "TAPML_TRACKER_TOKEN"  # noqa: S105 - a variable's name
CA_VARIABLE: Final = "TAPML_TRACKER_CA"
FINGERPRINT_VARIABLE: Final = "TAPML_TRACKER_FINGERPRINT"
ABSENT_SECONDS: Final = 60.0
"""Seconds to wait for a device that is not registered, if a spec does not say."""

_WORD: Final = "tracker"
_WAIT: Final = "wait"


def is_tracker_spec(spec: str) -> bool:
    """Whether a device is to come from a tracker."""
    return spec == _WORD or spec.startswith(f"{_WORD}:")


def tracker_address(given: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """The tracker to ask: what was given, else ``TAPML_TRACKER``.

    Raises InputError without either.
    """
    address = given or environ.get(VARIABLE, "")
    if not address:
        raise InputError(
            f"no tracker is known: set {VARIABLE} to its tcp://HOST:PORT or ws://HOST:PORT "
            "(`tapml devices` takes --tracker as well)"
        )
    return address


def tracker_credentials(
    address: str, environ: Mapping[str, str] = os.environ
) -> Credentials | None:
    """Secrets for a tracker, as the environment names them; None if it names none.

    ``TAPML_TRACKER_KEY`` is the tracker's public key or the path of one, ``TAPML_RPC_KEY`` the path
    of this side's own ``.secret`` file. Over WebSocket: ``TAPML_TRACKER_TOKEN`` is the tracker's
    token, ``TAPML_TRACKER_FINGERPRINT`` its certificate's fingerprint, ``TAPML_TRACKER_CA`` the
    path of certificates to trust. For an `address` at ``ws://`` or ``wss://`` the keys, which need
    pyzmq, are not read.

    Raises
    ------
    InputError
        If a file is missing or damaged, or one of the two is not named.
    SetupError
        If others may read the secret.
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


def device_credentials(lease: Lease, environ: Mapping[str, str] = os.environ) -> Credentials:
    """Secrets for a device that was lent: the environment's own, and the key that the lease names.

    Raises
    ------
    InputError
        If a file is missing or damaged; or if this side has a key, and the device, on another
        machine, has none.
    SetupError
        If others may read the secret.
    """
    found = Credentials.from_environment(environ, lent_key=lease.server_key)
    keyless = found is None or found.keys is None
    if environ.get(KEY_VARIABLE) and keyless and _is_readable(lease.address):
        raise InputError(
            f"the device {lease.name!r} has no keys, and what is sent to it could be read on its "
            f"way, while {KEY_VARIABLE} says that this client has some: serve it with --key"
        )
    return lease.credentials(found) or Credentials()


def _is_readable(address: str) -> bool:
    """Whether others could read unencrypted bytes to this address."""
    parts = urlsplit(address.removeprefix("relay+"))
    host = parts.hostname or ""
    try:
        here = host == "localhost" or is_loopback(host)
    except ValueError:
        here = False
    return parts.scheme != "wss" and not here


def parse_spec(spec: str) -> dict[str, Any]:
    """A spec as arguments of :func:`request_device`; and ``wait``, in seconds.

    Raises InputError if it is malformed; the message shows a valid one.
    """
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
    exclusive: bool = True,
    priority: int = 0,
    timeout: float | None = None,
    own_seconds: float | None = None,
    credentials: Credentials | None = None,
    on_queue: Callable[[QueuePlace], None] | None = None,
) -> Lease:
    """Lease the device that a spec names; the arguments are those of :func:`request_device`.

    Without `credentials` they are those of :func:`tracker_credentials`. The ``wait`` of a spec is
    its `timeout`; without either a device that is held is waited for as long as it takes, and one
    that is not registered for :data:`ABSENT_SECONDS`.

    Raises
    ------
    InputError
        If the spec is malformed, or no tracker is known.
    TapmlError
        As :func:`request_device` does.
    """
    asked = parse_spec(spec)
    seconds = asked.pop(_WAIT, timeout)
    address = tracker_address(tracker)
    return request_device(
        address,
        exclusive=exclusive,
        priority=priority,
        timeout=seconds,
        absent_seconds=ABSENT_SECONDS if seconds is None else None,
        own_seconds=own_seconds,
        credentials=credentials or tracker_credentials(address),
        on_queue=on_queue,
        **asked,
    )
