"""Remote devices in ``tapml devices``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tapml.cli.fitting_table import fitting_table
from tapml_targets.errors import InputError, TapmlError

if TYPE_CHECKING:
    from rich.console import Console

    from tapml.devices.listing import ListedDevice
    from tapml_rpc.client import Session
    from tapml_targets.driver import DeviceDescription
    from tapml_targets.self_test.facts import SelfTest

_TIMEOUT_SECONDS: Final = 3.0
_LOOK_SECONDS: Final = 0.05
_VARIABLE: Final = "TAPML_TRACKER"


def add_tracker_argument(parser: argparse.ArgumentParser) -> None:
    """Declare ``--tracker``."""
    parser.add_argument(
        "--tracker",
        default="",
        metavar="ADDRESS",
        help="list a tracker's devices as well: tcp://, ws:// or wss://HOST:PORT "
        f"(default: ${_VARIABLE})",
    )


def usual_tracker() -> str:
    """The tracker of the environment, or empty."""
    return os.environ.get(_VARIABLE, "")


def add_no_open(parser: Any) -> None:
    """Declare ``--no-open``, for commands whose ``--device`` may be ``browser``."""
    parser.add_argument(
        "--no-open",
        action="store_true",
        help="with --device browser: only print the page's address, open no browser "
        "(browser:headless starts one without a window)",
    )


def wanted_device(arguments: argparse.Namespace) -> str | None:
    """What ``--device`` and ``--no-open`` ask for together."""
    device: str | None = arguments.device
    if device is None or not arguments.no_open:
        return device
    from tapml.devices.browser import without_opening

    return without_opening(device)


def on_standard_error(line: str) -> None:
    """Report why a command waits for a tracker's device."""
    print(f"tapml: {line}", file=sys.stderr, flush=True)


def remote_devices(
    tracker: str, platform: str | None, *, self_test: bool = False
) -> tuple[list[dict[str, Any]], str]:
    """A tracker's devices as plain data, and its error; both empty without a tracker.

    Parameters
    ----------
    platform
        Only devices of this kind; None for all.
    self_test
        Lease each free device briefly to measure it; others show cached results.
    """
    if not tracker:
        return [], ""
    from tapml.devices.listing import list_devices
    from tapml_rpc.tracker.request import tracker_credentials

    try:
        secret = tracker_credentials(tracker)
        found = list_devices(tracker, credentials=secret, timeout=_TIMEOUT_SECONDS)
    except TapmlError as error:
        return [], str(error)
    wanted = [device for device in found if platform in (None, device.description.platform)]
    return [
        device.to_plain() | {"self_test": _of_tracker(tracker, device, measure=self_test)}
        for device in wanted
    ], ""


def addressed_devices(
    addresses: Sequence[str], platform: str | None, *, self_test: bool = False
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The devices of servers as plain data like a tracker's, and errors by address.

    Parameters
    ----------
    addresses
        Servers; each is opened briefly.
    platform
        Only devices of this kind; None for all.
    self_test
        Measure each device.
    """
    rows: list[dict[str, Any]] = []
    problems: dict[str, str] = {}
    for address in addresses:
        try:
            row = _asked(address, self_test=self_test)
        except TapmlError as error:
            problems[address] = str(error)
            continue
        if platform in (None, row["platform"]):
            rows.append(row)
    return rows, problems


def _of_tracker(tracker: str, device: ListedDevice, *, measure: bool) -> dict[str, Any] | None:
    """The self-test of a tracker's device; None if unknown."""
    from tapml.devices.reach import open_device, place_of_lent

    if measure and not device.leases:
        # Do not wait if another client was faster.
        spec = f"tracker:{device.name},wait={_TIMEOUT_SECONDS:g}"
        with suppress(TapmlError), open_device(spec, tracker=tracker) as session:
            return _measured(session, refresh=True)
    return _known(device.description, place_of_lent(device.name))


def _measured(session: Session, *, refresh: bool) -> dict[str, Any] | None:
    from tapml.devices.self_test import session_self_test

    found = session_self_test(session, refresh=refresh)
    return None if found is None else self_test_row(found)


def _known(description: DeviceDescription, place: str) -> dict[str, Any] | None:
    try:
        # It needs numpy, which a board that lists devices may lack.
        from tapml.devices.self_test import remembered_elsewhere
    except ImportError:
        return None
    found = remembered_elsewhere(description, place)
    return None if found is None else self_test_row(found)


def self_test_row(found: SelfTest) -> dict[str, Any]:
    """A self-test as plain data with its traits."""
    from tapml_targets.self_test.facts import to_plain

    return to_plain(found) | {"traits": list(found.traits)}


def self_test_lines(found: dict[str, Any] | None) -> list[str]:
    """The traits of a device in one line, then its problems."""
    if found is None:
        return []
    wrong = [f["meaning"] for f in found["facts"] if f["grave"] and f["sound"] is False]
    measured = "as one expects of IEEE arithmetic" if found["facts"] else "nothing was measured"
    traits = ", ".join(found["traits"]) or measured
    return [f"self-test: {traits}", *wrong, *found["problems"]]


def _asked(address: str, *, self_test: bool) -> dict[str, Any]:
    from tapml.devices.reach import SCHEMES, open_device
    from tapml_targets.description import fingerprint, to_plain

    if not address.startswith(SCHEMES):
        raise InputError(
            f"expected a server's address, {'HOST:PORT, '.join(SCHEMES)}HOST:PORT, got "
            f"{address!r}; a tracker's devices are listed with --tracker, and --test and other "
            "commands take their names after --device"
        )
    with open_device(address) as session:
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not (load := session.load()) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        measured = (
            _measured(session, refresh=True) if self_test else _known(session.device, address)
        )
        return {
            "spec": address,
            **to_plain(session.device),
            "fingerprint": fingerprint(session.device),
            "address": address,
            "websocket": "",
            # Without this session.
            "load": {name: load[name] - (name == "sessions") for name in load},
            "leases": [],
            "self_test": measured,
        }


def print_remote_devices(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    """A table of devices elsewhere, then a line for each with its fingerprint and holders."""
    console.print(f"\n{title}", highlight=False, markup=False)
    if not rows:
        console.print("no device is registered there", highlight=False)
        return
    columns = {
        "device": [row["spec"] for row in rows],
        "name": [row["name"] for row in rows],
        "kind": [row["platform"] for row in rows],
        "memory": [memory_text(row["limits"]["memory_bytes"]) for row in rows],
        "threads": [str(row["limits"]["max_threads_per_block"] or "-") for row in rows],
        "features": [" ".join(row["limits"]["features"]) or "-" for row in rows],
        "sessions": [_load(row["load"]) for row in rows],
        "lease": ["-" if row["spec"] == row["address"] else _leases(row["leases"]) for row in rows],
    }
    # Names come from other machines: no control characters.
    printable = {title: list(map(_printable, texts)) for title, texts in columns.items()}
    spare = ("features", "threads", "kind", "memory")
    table, left_out = fitting_table(printable, console.width, spare=spare)
    console.print(table)
    for row in rows:
        beside = f" and {row['websocket']}" if row["websocket"] else ""
        relayed = row["address"].startswith("relay")
        reached = "through the tracker" if relayed else f"at {row['address']}{beside}"
        where = "" if row["address"] == row["spec"] else f"{reached}; "
        features = f"{features_text(row)}; " if "features" in left_out else ""
        line = f"{row['spec']}: {where}{features}fingerprint {row['fingerprint'][:12]}"
        lines = [line, *(f"  {each}" for each in self_test_lines(row["self_test"]))]
        for each in lines:
            console.print(_printable(each), highlight=False, soft_wrap=True, markup=False)


def memory_text(nbytes: int) -> str:
    """A device's memory for a table; a dash if unknown."""
    return f"{nbytes / 2**30:.1f} GiB" if nbytes else "-"


def features_text(row: dict[str, Any]) -> str:
    """A device's features for a line of text."""
    return ", ".join(row["limits"]["features"]) or "no features"


def _load(load: Mapping[str, Any]) -> str:
    return f"{load.get('sessions', 0)}, {_size(load.get('device_bytes', 0))}"


def _leases(leases: list[dict[str, Any]]) -> str:
    if not leases:
        return "free"
    shown = [f"{lease['holder']} for {_age(lease['age_seconds'])}" for lease in leases]
    return ", ".join(shown)


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:.0f} MiB" if nbytes >= 1 << 20 else f"{nbytes} B"


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)
