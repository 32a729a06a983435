"""Devices of a tracker as a user names them: ``tracker`` for any, or ``tracker:pixel``.

After the colon stands a device's name, or what it must have, separated by commas:
``tracker:kind=opencl,feature=float16,min_buffer_bytes=268435456``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from tapml_rpc.security.credentials import KEY_VARIABLE, Credentials
from tapml_rpc.tracker.lease import Lease
from tapml_rpc.tracker.records import is_device_name
from tapml_rpc.tracker.request import QueuePlace, request_device
from tapml_rpc.tracker.requirements import LIMITS
from tapml_targets.errors import InputError

VARIABLE: Final = "TAPML_TRACKER"
TRACKER_KEY_VARIABLE: Final = "TAPML_TRACKER_KEY"
TOKEN_VARIABLE: Final = "TAPML_TRACKER_TOKEN"  # noqa: S105 - a variable's name
CA_VARIABLE: Final = "TAPML_TRACKER_CA"
FINGERPRINT_VARIABLE: Final = "TAPML_TRACKER_FINGERPRINT"
_WORD: Final = "tracker"


def is_tracker_spec(spec: str) -> bool:
    """Whether a device is to come from a tracker."""
    return spec == _WORD or spec.startswith(f"{_WORD}:")


def tracker_address(given: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """The tracker to ask: what was given, else what ``TAPML_TRACKER`` says.

    Raises
    ------
    InputError
        If neither says.
    """
    address = given or environ.get(VARIABLE, "")
    if not address:
        raise InputError(
            f"no tracker is known: set {VARIABLE} to its tcp://HOST:PORT or ws://HOST:PORT "
            "(`tapml devices` takes --tracker as well)"
        )
    return address


def tracker_credentials(environ: Mapping[str, str] = os.environ) -> Credentials | None:
    """Secrets for a tracker, as the environment names them; None where it names none for one.

    ``TAPML_TRACKER_KEY`` is the tracker's public key or the path of one, ``TAPML_RPC_KEY`` the path
    of this side's own ``.secret`` file. Over WebSocket: ``TAPML_TRACKER_TOKEN`` is what the tracker
    asks for, ``TAPML_TRACKER_FINGERPRINT`` its certificate's, ``TAPML_TRACKER_CA`` the path of
    certificates to trust.

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
    if not any((theirs, token, ca_file, fingerprint)):
        return None
    files = Credentials.from_files(
        key=environ.get(KEY_VARIABLE) or None if theirs else None,
        server_key=theirs,
        ca_file=ca_file,
        fingerprint=fingerprint,
    )
    return replace(files, token=token)


def parse_spec(spec: str) -> dict[str, Any]:
    """What a spec asks for, as arguments of :func:`request_device`.

    Raises
    ------
    InputError
        If it is no such spec; the message shows one.
    """
    word, _, rest = spec.partition(":")
    if word != _WORD:
        raise InputError(f"expected {_WORD}, {_WORD}:NAME or {_WORD}:kind=opencl, got {spec!r}")
    if not rest:
        return {}
    if "=" not in rest:
        if not is_device_name(rest):
            raise InputError(f"expected a device's name after {_WORD}:, got {rest!r}")
        return {"name": rest}
    asked: dict[str, Any] = {"features": [], "limits": {}}
    for part in rest.split(","):
        key, _, value = part.partition("=")
        if key in ("kind", "name") and value and key not in asked:
            asked[key] = value
        elif key == "feature" and value:
            asked["features"].append(value)
        elif key in LIMITS and value.isascii() and value.isdigit() and len(value) < 19:
            asked["limits"][key] = int(value)
        else:
            raise InputError(
                f"{part!r} of {spec!r} asks for nothing known: kind=, name= (once each), "
                f"feature=, {'=, '.join(LIMITS)}= and a number"
            )
    return asked


def resolve(
    spec: str,
    tracker: str | None = None,
    *,
    exclusive: bool = True,
    priority: int = 0,
    timeout: float | None = None,
    credentials: Credentials | None = None,
    on_queue: Callable[[QueuePlace], None] | None = None,
) -> Lease:
    """Lend the device that a spec names; the arguments are those of :func:`request_device`.

    Without `credentials` they are those of :func:`tracker_credentials`.

    Raises
    ------
    InputError
        If the spec is none, or no tracker is known.
    TapmlError
        As :func:`request_device` does.
    """
    return request_device(
        tracker_address(tracker),
        exclusive=exclusive,
        priority=priority,
        timeout=timeout,
        credentials=credentials or tracker_credentials(),
        on_queue=on_queue,
        **parse_spec(spec),
    )
