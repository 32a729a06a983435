"""What ``tapml doctor rpc`` looks at: what devices elsewhere take, beside the base install."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Final

from tapml.cli.doctor import Check
from tapml_targets.errors import TapmlError
from tapml_targets.installed import package_hint, package_version

_TRACKER_SECONDS: Final = 3.0
_TRACKER: Final = "TAPML_TRACKER"


def check_rpc() -> Iterator[Check]:
    """Encryption, what the environment names, who is admitted here, and the tracker."""
    yield _curve()
    yield _certificates()
    yield _credentials()
    yield _clients()
    if os.environ.get(_TRACKER):
        yield _tracker(os.environ[_TRACKER])


def _curve() -> Check:
    try:
        import zmq
    except ImportError:
        return Check("rpc", "CURVE", "absent", "not tried: it takes pyzmq", package_hint("pyzmq"))
    if zmq.has("curve"):
        return Check("rpc", "CURVE", "ok", f"ZeroMQ {zmq.zmq_version()} has it")
    found = f"ZeroMQ {zmq.zmq_version()} was built without it"
    return Check("rpc", "CURVE", "problem", found, "install pyzmq's own wheel: pip install pyzmq")


def _certificates() -> Check:
    """Whether ``wss://`` can be served without a certificate of somebody's."""
    package, command = package_version("cryptography"), shutil.which("openssl")
    if package or command:
        found = f"made by cryptography {package}" if package else f"made by {command}"
        return Check("rpc", "certificates", "ok", found)
    return Check(
        "rpc",
        "certificates",
        "problem",
        "nothing here makes one",
        "pip install cryptography, or install openssl, or give --certificate to what listens",
    )


def _credentials() -> Check:
    """The secrets and the trust that the environment names, for devices and for a tracker."""
    from tapml_rpc.security.credentials import Credentials
    from tapml_rpc.tracker.spec import tracker_credentials

    try:
        # With a tracker this side's key alone is enough: a lease names the device's.
        device = Credentials.from_environment(lent_key="")
        tracker = tracker_credentials(os.environ.get(_TRACKER, ""))
    except TapmlError as error:
        return Check("rpc", "credentials", "problem", str(error), "look at the TAPML_ variables")
    named = sorted(
        name
        for name in os.environ
        if name.startswith(("TAPML_RPC_", "TAPML_TRACKER_")) and os.environ[name]
    )
    if device is None and tracker is None and not named:
        return Check("rpc", "credentials", "ok", "none named: enough for this machine alone")
    return Check("rpc", "credentials", "ok", f"sound: {', '.join(named)}")


def _clients() -> Check:
    from tapml_rpc.security.allow_list import AllowList

    listed = AllowList()
    try:
        names = [client.name for client in listed.clients()]
    except TapmlError as error:
        remedy = "until it is mended nobody with a key is let in"
        return Check("rpc", "clients", "problem", str(error), remedy)
    return Check("rpc", "clients", "ok", f"{listed.path} admits {', '.join(names) or 'nobody'}")


def _tracker(address: str) -> Check:
    from tapml_rpc.tracker import list_devices, tracker_credentials

    try:
        secret = tracker_credentials(address)
        found = list_devices(address, credentials=secret, timeout=_TRACKER_SECONDS)
    except TapmlError as error:
        return Check("rpc", "tracker", "problem", str(error), f"or unset {_TRACKER}")
    names = ", ".join(device.name for device in found) or "no device"
    return Check("rpc", "tracker", "ok", f"{address} has {names}")
