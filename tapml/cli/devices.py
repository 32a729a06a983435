"""``tapml devices``: the devices of this machine and a tracker's, and which is the default."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from tapml.cli.remote_devices import (
    add_tracker_argument,
    addressed_devices,
    memory_text,
    print_remote_devices,
    remote_devices,
    self_test_lines,
    self_test_row,
    usual_tracker,
)
from tapml_targets.description_format import to_plain
from tapml_targets.errors import EXIT_NO_DEVICE, TapmlError
from tapml_targets.fingerprint import fingerprint
from tapml_targets.platforms import platform_names
from tapml_targets.ranking import RANKED_DTYPES, RankedDevice, left_out_drivers, rank_devices


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "devices",
        help="the devices of this machine, of servers and of a tracker",
        description=(
            "List the devices of this machine: what they are, what they can take, and which one\n"
            "each platform uses by default. A device counts once a kernel has been built and has\n"
            "computed the right result on it; what was found is remembered for a day."
        ),
        epilog=(
            "examples:\n"
            "  tapml devices\n"
            "  tapml devices --platform opencl --dtype float16   ranked for half precision\n"
            "  tapml devices --probe                             test every device again\n"
            "  tapml devices --self-test                         measure what each really does\n"
            "  tapml devices --json | jq '.devices[] | select(.default)'\n"
            "  tapml devices --tracker tcp://farm:9190           a tracker's, with who holds them\n"
            "  tapml devices tcp://board:9190                    a server's, with how busy it is\n"
            "\nexit codes: 0 a device can be used; 3 none can, or an ADDRESS or a --tracker given\n"
            "here does not answer\n"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "addresses",
        nargs="*",
        metavar="ADDRESS",
        help="list the devices of these servers as well, tcp://HOST:PORT or wss://HOST:PORT",
    )
    parser.add_argument(
        "--platform", choices=platform_names(), help="only this platform (default: all)"
    )
    parser.add_argument(
        "--dtype",
        choices=RANKED_DTYPES,
        default="float32",
        help="what the kernels compute in (default: %(default)s)",
    )
    parser.add_argument(
        "--probe", action="store_true", help="list and test again instead of using what is known"
    )
    parser.add_argument(
        "--self-test",
        action="store_true",
        help="measure again what each device does with loops, denormals, NaNs and so on",
    )
    add_tracker_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the devices."""
    platforms = (arguments.platform,) if arguments.platform else platform_names()
    rows: list[dict[str, Any]] = []
    problems: dict[str, str] = {}
    for platform in platforms:
        try:
            ranked = rank_devices(platform, arguments.dtype, refresh=arguments.probe)
        except TapmlError as error:
            problems[platform] = str(error)
            continue
        if all(device.description.device_type == "checker" for device in ranked):
            but = " but a checker" if ranked else ""
            problems[platform] = (
                f"no {platform} device here{but}; `tapml doctor {platform}` says why"
            )
        rows += [
            row | {"self_test": _self_test(device, arguments)}
            for row, device in zip(describe_all(ranked), ranked, strict=True)
        ]
    left_out = {platform: left_out_drivers(platform) for platform in platforms}
    tracker = arguments.tracker or usual_tracker()
    measure = arguments.self_test
    lent, problem = remote_devices(tracker, arguments.platform, self_test=measure)
    if problem:
        problems["tracker"] = problem
    asked, silent = addressed_devices(arguments.addresses, arguments.platform, self_test=measure)
    problems |= silent
    remote = [*lent, *asked]
    if arguments.json:
        left_out = {platform: drivers for platform, drivers in left_out.items() if drivers}
        known = {"devices": rows, "remote": remote, "problems": problems, "left_out": left_out}
        print(json.dumps(known, indent=2))
    else:
        elsewhere = {"servers": asked} if asked else {}
        if tracker and not problem:
            elsewhere = {f"tracker {tracker}": lent, **elsewhere}
        _print_table(rows, elsewhere, problems | _left_out_lines(left_out))
    usable = remote or any(row["default"] for row in rows)
    # What was asked for by its address is what a script waits for; a tracker of the environment is
    # there for every command, also for one that is about this machine.
    missed = silent or (arguments.tracker and problem)
    return 0 if usable and not missed else EXIT_NO_DEVICE


def _left_out_lines(left_out: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """What to say about each driver that hung or crashed, by the driver."""
    return {
        f"{platform}, the driver of {name}": (
            f"left out for a day: {why}; `tapml devices --probe` lets it in again"
        )
        for platform, drivers in left_out.items()
        for name, why in drivers.items()
    }


def _self_test(device: RankedDevice, arguments: argparse.Namespace) -> dict[str, Any] | None:
    """What a device does, measured: run for who reads all of it, else shown where it is known."""
    if device.problem:
        return None
    try:
        # They compute with numpy, which `tapml devices` does not need to list a board's devices.
        from tapml_targets.self_test.known import remembered_self_test, usual_self_test
    except ModuleNotFoundError:
        return None

    if arguments.self_test or arguments.json:
        found = usual_self_test(device.description, refresh=arguments.self_test)
    else:
        found = remembered_self_test(device.description)
    return None if found is None else self_test_row(found)


def describe_all(ranked: list[RankedDevice]) -> list[dict[str, Any]]:
    """The ranked devices of one platform as plain data, best first, the default one marked."""
    usable = [d for d in ranked if not d.problem and d.description.device_type != "checker"]
    default = usable[0] if usable else None
    return [
        {
            "spec": device.spec,
            **to_plain(device.description),
            "fingerprint": fingerprint(device.description),
            "milliseconds": device.milliseconds,
            "problem": device.problem,
            "default": device is default,
            "why": _why(device, usable),
        }
        for device in ranked
    ]


def _why(device: RankedDevice, usable: list[RankedDevice]) -> str:
    """Why a device is or is not its platform's default."""
    kind = device.description.device_type
    if device.problem:
        return device.problem
    if kind == "checker":
        return "checks kernels and is slow: used only when named"
    best = usable[0]
    if device is not best:
        if kind != best.description.device_type:
            return f"a {best.description.device_type} comes before a {kind}"
        return "slower in the probe"
    if len(usable) == 1:
        return "the default: the only usable device"
    if kind != usable[1].description.device_type:
        return f"the default: a {kind} comes first"
    return f"the default: the fastest {kind} in the probe"


def _print_table(
    rows: list[dict[str, Any]],
    elsewhere: Mapping[str, list[dict[str, Any]]],
    problems: dict[str, str],
) -> None:
    from rich.console import Console
    from rich.table import Table

    # A fingerprint has letters between colons, which rich takes for the names of pictures.
    console = Console(emoji=False)
    if rows:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("device", no_wrap=True)
        for title in ("name", "driver", "type", "probe", "memory", "threads", "features"):
            table.add_column(title, overflow="fold")
        for row in rows:
            limits = row["limits"]
            milliseconds = row["milliseconds"]
            table.add_row(
                row["spec"] + (" *" if row["default"] else ""),
                row["name"],
                row["vendor_platform"],
                row["device_type"],
                "-" if milliseconds is None else f"{milliseconds:.3g} ms",
                memory_text(limits["memory_bytes"]),
                str(limits["max_threads_per_block"] or "-"),
                " ".join(limits["features"]) or "-",
            )
        console.print(table)
        for row in rows:
            console.print(
                f"{row['spec']}: {row['why']}; fingerprint {row['fingerprint'][:12]}",
                highlight=False,
                soft_wrap=True,
                markup=False,
            )
            for line in self_test_lines(row["self_test"]):
                console.print(f"  {line}", highlight=False, soft_wrap=True, markup=False)
    for title, remote in elsewhere.items():
        print_remote_devices(console, title, remote)
    for platform, problem in problems.items():
        console.print(f"{platform}: {problem}", highlight=False, soft_wrap=True, markup=False)
