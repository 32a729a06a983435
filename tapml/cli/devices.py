"""``tapml devices``: the devices of this machine and which one is used by default."""

from __future__ import annotations

import argparse
import json
from typing import Any

from tapml_targets.description_format import to_plain
from tapml_targets.errors import EXIT_NO_DEVICE, TapmlError
from tapml_targets.fingerprint import fingerprint
from tapml_targets.platforms import platform_names
from tapml_targets.ranking import RANKED_DTYPES, RankedDevice, rank_devices


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "devices",
        help="the devices of this machine",
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
            "  tapml devices --json | jq '.devices[] | select(.default)'\n"
            "\nexit codes: 0 a device can be used; 3 none can\n"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
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
        rows += describe_all(ranked)
    if arguments.json:
        print(json.dumps({"devices": rows, "problems": problems}, indent=2))
    else:
        _print_table(rows, problems)
    return 0 if any(row["default"] for row in rows) else EXIT_NO_DEVICE


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


def _print_table(rows: list[dict[str, Any]], problems: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if rows:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("device", "name", "driver", "type", "probe", "memory", "threads", "features"):
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
                f"{limits['memory_bytes'] / 2**30:.1f} GiB",
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
    for platform, problem in problems.items():
        console.print(f"{platform}: {problem}", highlight=False, soft_wrap=True, markup=False)
