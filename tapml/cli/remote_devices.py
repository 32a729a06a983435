"""Devices elsewhere, as ``tapml devices`` shows them beside those of this machine."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tapml_targets.errors import InputError, TapmlError

if TYPE_CHECKING:
    from rich.console import Console

    from tapml_rpc.client import Session
    from tapml_rpc.tracker.listing import ListedDevice
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
    """The tracker that the environment names; empty where it names none."""
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
    from tapml_rpc.browser_device import without_opening

    return without_opening(device)


def on_standard_error(line: str) -> None:
    """Tell whoever waits for a tracker's device what is waited for."""
    print(f"tapml: {line}", file=sys.stderr, flush=True)


def remote_devices(
    tracker: str, platform: str | None, *, self_test: bool = False
) -> tuple[list[dict[str, Any]], str]:
    """A tracker's devices as plain data, and what kept it from telling; nothing without a tracker.

    Parameters
    ----------
    platform
        Only devices of this kind; None for all.
    self_test
        Lend each that nobody has for a moment, and measure what it does; of the others is told
        what is known.
    """
    if not tracker:
        return [], ""
    from tapml_rpc.tracker import list_devices, tracker_credentials

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
    """The devices of servers as plain data like a tracker's, and what kept each other one away.

    Parameters
    ----------
    addresses
        Of servers; each is opened for a moment.
    platform
        Only devices of this kind; None for all.
    self_test
        Measure what each does.
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
    """What a device that a tracker lends was measured to do; None where nobody knows."""
    from tapml_rpc.reach import open_device, place_of_lent

    if measure and not device.leases:
        # Whoever is quicker has it, and is not to be waited for.
        spec = f"tracker:{device.name},wait={_TIMEOUT_SECONDS:g}"
        with suppress(TapmlError), open_device(spec, tracker=tracker) as session:
            return _measured(session, refresh=True)
    return _known(device.description, place_of_lent(device.name))


def _measured(session: Session, *, refresh: bool) -> dict[str, Any] | None:
    from tapml_rpc.known_self_test import session_self_test

    found = session_self_test(session, refresh=refresh)
    return None if found is None else self_test_row(found)


def _known(description: DeviceDescription, place: str) -> dict[str, Any] | None:
    try:
        # It computes with numpy, which a board that lists devices may not have.
        from tapml_rpc.known_self_test import remembered_elsewhere
    except ImportError:
        return None
    found = remembered_elsewhere(description, place)
    return None if found is None else self_test_row(found)


def self_test_row(found: SelfTest) -> dict[str, Any]:
    """A self-test as plain data, with what there is to tell in a few words."""
    from tapml_targets.self_test.facts import to_plain

    return to_plain(found) | {"traits": list(found.traits)}


def self_test_lines(found: dict[str, Any] | None) -> list[str]:
    """The traits of a device in one line, then what is wrong with it."""
    if found is None:
        return []
    wrong = [f["meaning"] for f in found["facts"] if f["grave"] and f["sound"] is False]
    traits = ", ".join(found["traits"]) or "as one expects of IEEE arithmetic"
    return [f"self-test: {traits}", *wrong, *found["problems"]]


def _asked(address: str, *, self_test: bool) -> dict[str, Any]:
    from tapml_rpc.reach import SCHEMES, open_device
    from tapml_targets.description_format import to_plain
    from tapml_targets.fingerprint import fingerprint

    if not address.startswith(SCHEMES):
        raise InputError(
            f"expected a server's address, {'HOST:PORT, '.join(SCHEMES)}HOST:PORT, got {address!r}"
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
            # This look is one of its sessions.
            "load": {name: load[name] - (name == "sessions") for name in load},
            "leases": [],
            "self_test": measured,
        }


def print_remote_devices(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    """A table of devices elsewhere, then a line for each with its fingerprint and holders."""
    from rich.table import Table
    from rich.text import Text

    console.print(f"\n{title}", highlight=False, markup=False)
    if not rows:
        console.print("no device is registered there", highlight=False)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    # What is typed again stays in one piece.
    table.add_column("device", no_wrap=True)
    for column in ("name", "kind", "memory", "threads", "features", "sessions", "lease"):
        table.add_column(column, overflow="fold")
    for row in rows:
        limits, load = row["limits"], row["load"]
        texts = (
            row["spec"],
            row["name"],
            row["platform"],
            memory_text(limits["memory_bytes"]),
            str(limits["max_threads_per_block"] or "-"),
            " ".join(limits["features"]) or "-",
            f"{load.get('sessions', 0)}, {_size(load.get('device_bytes', 0))}",
            "-" if row["spec"] == row["address"] else _leases(row["leases"]),
        )
        # Names come from other machines: nothing in them is markup, nor steers the terminal.
        table.add_row(*(Text(_printable(text)) for text in texts))
    console.print(table)
    for row in rows:
        beside = f" and {row['websocket']}" if row["websocket"] else ""
        relayed = row["address"].startswith("relay")
        reached = "through the tracker" if relayed else f"at {row['address']}{beside}"
        where = "" if row["address"] == row["spec"] else f"{reached}; "
        line = f"{row['spec']}: {where}fingerprint {row['fingerprint'][:12]}"
        lines = [line, *(f"  {each}" for each in self_test_lines(row["self_test"]))]
        for each in lines:
            console.print(_printable(each), highlight=False, soft_wrap=True, markup=False)


def memory_text(nbytes: int) -> str:
    """A device's memory for a table; a dash where the platform does not tell it."""
    return f"{nbytes / 2**30:.1f} GiB" if nbytes else "-"


def _leases(leases: list[dict[str, Any]]) -> str:
    if not leases:
        return "free"
    shown = [f"{lease['holder']} for {_age(lease['age_seconds'])}" for lease in leases]
    shared = "" if leases[0]["exclusive"] else "shared: "
    return shared + ", ".join(shown)


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:.0f} MiB" if nbytes >= 1 << 20 else f"{nbytes} B"


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)
