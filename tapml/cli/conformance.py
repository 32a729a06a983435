"""``tapml devices --test``: the conformance cases on devices here and elsewhere, as a table."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from tapml.cli.remote_devices import on_standard_error
from tapml_targets.errors import EXIT_MISMATCH, EXIT_NO_DEVICE, EXIT_USAGE, InputError, TapmlError
from tapml_targets.ranking import find_device, rank_devices

if TYPE_CHECKING:
    from tapml_targets.conformance.running import CaseResult

Place: TypeAlias = "Callable[[], list[CaseResult]]"
"""Runs all cases on one device."""

FORMAT = "tapml-conformance/1"
_BETWEEN = 2


def run_conformance(
    platforms: Sequence[str], specs: Sequence[str], dtype: str, *, as_json: bool
) -> int:
    """Run all cases on devices, and print how they went.

    Parameters
    ----------
    platforms
        Without `specs`: every usable device of these but checkers.
    specs
        Devices here or elsewhere, as ``--device`` names them.

    Returns
    -------
    int
        0 if no case fails, 1 if one does, 2 if a named device's address or name is refused, 3 if it
        is absent or no device exists.

    Raises
    ------
    InputError
        If a spec is malformed.
    """
    from tapml.devices.reach import check_spec

    places: dict[str, Place]
    problems: dict[str, str] = {}
    for spec in specs:
        check_spec(spec)
    if specs:
        places = {spec: partial(_named, spec) for spec in specs}
    else:
        places, problems = _of_this_machine(platforms, dtype)
    results: dict[str, list[CaseResult]] = {}
    refused = False
    for number, (spec, cases_of) in enumerate(places.items(), 1):
        print(f"{number} of {len(places)}: {spec}", file=sys.stderr, flush=True)
        try:
            results[spec] = cases_of()
        except TapmlError as error:
            problems[spec] = str(error)
            refused = refused or isinstance(error, InputError)
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
    if any(case.status == "fail" for cases in results.values() for case in cases):
        return EXIT_MISMATCH
    if specs and refused:
        return EXIT_USAGE
    return 0 if results and not (specs and problems) else EXIT_NO_DEVICE


def _of_this_machine(
    platforms: Sequence[str], dtype: str
) -> tuple[dict[str, Place], dict[str, str]]:
    """The usable devices of platforms, and what is wrong with the others."""
    from tapml_targets.conformance.running import conformance

    places: dict[str, Place] = {}
    problems: dict[str, str] = {}
    for platform in platforms:
        try:
            ranked = rank_devices(platform, dtype)
        except TapmlError as error:
            problems[platform] = str(error)
            continue
        problems |= {each.spec: each.problem for each in ranked if each.problem}
        places |= {
            each.spec: partial(conformance, each.description)
            for each in ranked
            if not each.problem and each.description.device_type != "checker"
        }
    return places, problems


def _named(spec: str) -> list[CaseResult]:
    from tapml.devices.conformance import conformance_over
    from tapml.devices.reach import is_remote, open_device
    from tapml_targets.conformance.running import conformance

    if not is_remote(spec):
        return conformance(find_device(spec))
    with open_device(spec, say=on_standard_error) as session:
        return conformance_over(session)


def _print(results: Mapping[str, Sequence[CaseResult]], problems: Mapping[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"pass": "green", "fail": "red", "not run": "yellow"}
    console = Console(emoji=False)
    for some in _fitting(results, console.width):
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("case", *some):
            table.add_column(title, overflow="fold")
        for row in zip(*some.values(), strict=True):
            cells = (Text(case.status, style=colours[case.status]) for case in row)
            table.add_row(row[0].case, *cells)
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


def _fitting(
    results: Mapping[str, Sequence[CaseResult]], width: int
) -> Iterator[dict[str, Sequence[CaseResult]]]:
    """As many devices at a time as a terminal shows beside the whole names of the cases."""
    names = [case.case for cases in results.values() for case in cases]
    left = dict(results)
    while left:
        some: dict[str, Sequence[CaseResult]] = {}
        room = width - max(map(len, names), default=0)
        while left:
            spec = next(iter(left))
            room -= _BETWEEN + max(len(spec), 0, *(len(case.status) for case in left[spec]))
            if some and room < 0:
                break
            some[spec] = left.pop(spec)
        yield some
