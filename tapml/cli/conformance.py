"""``tapml devices --test``: the conformance cases on this machine's devices, as a table."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tapml_targets.errors import EXIT_MISMATCH, EXIT_NO_DEVICE, TapmlError
from tapml_targets.ranking import RankedDevice, rank_devices

if TYPE_CHECKING:
    from tapml_targets.conformance.running import CaseResult

FORMAT = "tapml-conformance/1"


def run_conformance(platforms: Sequence[str], dtype: str, *, as_json: bool) -> int:
    """Run all cases on every usable device but checkers, and print how they went.

    Returns
    -------
    int
        0 if none fails, 1 if one does, 3 if there is no device.
    """
    from tapml_targets.conformance.running import conformance

    devices: list[RankedDevice] = []
    problems: dict[str, str] = {}
    for platform in platforms:
        try:
            ranked = rank_devices(platform, dtype)
        except TapmlError as error:
            problems[platform] = str(error)
            continue
        problems |= {each.spec: each.problem for each in ranked if each.problem}
        devices += [
            each
            for each in ranked
            if not each.problem and each.description.device_type != "checker"
        ]
    results: dict[str, list[CaseResult]] = {}
    for number, device in enumerate(devices, 1):
        where = f"{device.spec} {device.description.name}"
        print(f"{number} of {len(devices)}: {where}", file=sys.stderr, flush=True)
        results[device.spec] = conformance(device.description)
    if as_json:
        plain = {
            "format": FORMAT,
            "devices": {
                spec: [case.to_json() for case in cases] for spec, cases in results.items()
            },
            "problems": problems,
        }
        print(json.dumps(plain, indent=1))
    else:
        _print(results, problems)
    if not results:
        return EXIT_NO_DEVICE
    failed = any(case.status == "fail" for cases in results.values() for case in cases)
    return EXIT_MISMATCH if failed else 0


def _print(results: Mapping[str, Sequence[CaseResult]], problems: Mapping[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"pass": "green", "fail": "red", "not run": "yellow"}
    console = Console(emoji=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("case", *results):
        table.add_column(title, overflow="fold")
    for row in zip(*results.values(), strict=True):
        cells = (Text(case.status, style=colours[case.status]) for case in row)
        table.add_row(row[0].case, *cells)
    if results:
        console.print(table)
    reasons = [
        f"{spec}: {case.case}: {case.status}: {case.reason}"
        for spec, cases in results.items()
        for case in cases
        if case.status != "pass"
    ]
    for line in (*reasons, *(f"{place}: {problem}" for place, problem in problems.items())):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for spec, cases in results.items():
        passed = sum(case.status == "pass" for case in cases)
        seconds = sum(case.seconds for case in cases)
        console.print(
            f"{spec}: {passed} of {len(cases)} cases pass, {seconds:.1f} s",
            highlight=False,
            soft_wrap=True,
        )
