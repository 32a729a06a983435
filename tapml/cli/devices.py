"""``tapml devices``: the devices of this machine and a tracker's, and which is the default."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any, Literal

from tapml.cli.conformance import run_conformance
from tapml.cli.fitting_table import fitting_table
from tapml.cli.remote_devices import (
    add_tracker_argument,
    addressed_devices,
    features_text,
    memory_text,
    print_remote_devices,
    remote_devices,
    self_test_lines,
    self_test_row,
    usual_tracker,
)
from tapml_targets.description import fingerprint, to_plain
from tapml_targets.errors import EXIT_NO_DEVICE, InputError, SetupError, TapmlError
from tapml_targets.platforms import left_out_platforms, platform_names
from tapml_targets.ranking import RANKED_DTYPES, RankedDevice, left_out_drivers, rank_devices


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "devices",
        help="the devices of this machine, of servers and of a tracker",
        description=(
            "List the devices of this machine with their limits, and each platform's default. A\n"
            "device is usable if a probe kernel builds and computes the right result; findings\n"
            "are cached for a day."
        ),
        epilog=(
            "examples:\n"
            "  tapml devices\n"
            "  tapml devices --platform opencl --dtype float16   ranked for half precision\n"
            "  tapml devices --probe                             test every device again\n"
            "  tapml devices --self-test                         measure each device's arithmetic\n"
            "  tapml devices --test --platform vulkan            show that drivers conform\n"
            "  tapml devices --test --device tcp://board:9190    and that one, with its server\n"
            "  tapml devices --json | jq '.devices[] | select(.default)'\n"
            "  tapml devices --tracker tcp://farm:9190           a tracker's, with their holders\n"
            "  tapml devices tcp://board:9190                    a server's, with its load\n"
            "\nexit codes: 0 a device can be used; 1 a case of --test fails; 2 an address or a\n"
            "name is malformed; 3 none can, or an ADDRESS or a --tracker does not answer\n"
        ),
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
        help="dtype of the probe kernels (default: %(default)s)",
    )
    parser.add_argument(
        "--probe", action="store_true", help="list and test again, without the cache"
    )
    parser.add_argument(
        "--self-test",
        action="store_true",
        help="measure again how each device handles loops, denormals, NaNs and so on",
    )
    parser.add_argument(
        "--test",
        action="store_true",
        help="run the conformance cases of drivers on every usable device of this machine: memory, "
        "launches, refusals; platforms of other distributions included",
    )
    parser.add_argument(
        "--device",
        action="append",
        default=[],
        metavar="DEVICE",
        help="with --test: only this one, vulkan:1, tcp://HOST:PORT, tracker:NAME or browser; "
        "may be given again. An ADDRESS means the same",
    )
    add_tracker_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the devices."""
    platforms = (arguments.platform,) if arguments.platform else platform_names()
    if arguments.test:
        named = [*arguments.device, *arguments.addresses]
        return run_conformance(platforms, named, arguments.dtype, as_json=arguments.json)
    if arguments.device:
        raise InputError("--device says which devices --test is for: add --test, or leave it out")
    rows: list[dict[str, Any]] = []
    problems = {} if arguments.platform else dict(left_out_platforms())
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
    left_out = {platform: _left_out(platform) for platform in platforms}
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
    # A script waits for the addresses it gives; a tracker from the environment may be unrelated.
    missed = silent or (arguments.tracker and problem)
    return 0 if usable and not missed else EXIT_NO_DEVICE


def _left_out(platform: str) -> dict[str, str]:
    try:
        return left_out_drivers(platform)
    except SetupError:
        return {}  # listing its devices said why


def _left_out_lines(left_out: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """A line about each driver that hung or crashed."""
    return {
        f"{platform}, the driver of {name}": (
            f"left out for a day: {why}; `tapml devices --probe` lets it in again"
        )
        for platform, drivers in left_out.items()
        for name, why in drivers.items()
    }


def _self_test(device: RankedDevice, arguments: argparse.Namespace) -> dict[str, Any] | None:
    """A device's self-test: run for JSON, else shown if cached."""
    if device.problem:
        return None
    try:
        # It needs numpy, which a board that lists devices may lack.
        from tapml_targets.self_test.known import self_test
    except ModuleNotFoundError:
        return None

    policy: Literal["cached", "run", "cached-only"] = "cached" if arguments.json else "cached-only"
    if arguments.self_test:
        policy = "run"
    found = self_test(device.description, policy=policy)
    return None if found is None else self_test_row(found)


def describe_all(ranked: list[RankedDevice]) -> list[dict[str, Any]]:
    """The ranked devices of a platform as plain data, best first, with the default marked."""
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


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The texts of the table's columns."""
    return {
        "device": [row["spec"] + (" *" if row["default"] else "") for row in rows],
        "name": [row["name"] for row in rows],
        "driver": [row["vendor_platform"] for row in rows],
        "type": [row["device_type"] for row in rows],
        "probe": [_time_text(row["milliseconds"]) for row in rows],
        "memory": [memory_text(row["limits"]["memory_bytes"]) for row in rows],
        "threads": [str(row["limits"]["max_threads_per_block"] or "-") for row in rows],
        "features": [" ".join(row["limits"]["features"]) or "-" for row in rows],
    }


def _time_text(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "-"
    return f"{milliseconds / 1000:.3g} s" if milliseconds >= 1000 else f"{milliseconds:.3g} ms"


def _print_table(
    rows: list[dict[str, Any]],
    elsewhere: Mapping[str, list[dict[str, Any]]],
    problems: dict[str, str],
) -> None:
    from rich.console import Console

    # rich would read a fingerprint's letters between colons as emoji.
    console = Console(emoji=False)
    if rows:
        table, left_out = fitting_table(
            _columns(rows),
            console.width,
            spare=("features", "threads", "memory", "probe"),
            below=("name", "driver"),
        )
        console.print(table)
        for row in rows:
            features = f"; {features_text(row)}" if "features" in left_out else ""
            console.print(
                f"{row['spec']}: {row['why']}{features}; fingerprint {row['fingerprint'][:12]}",
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
