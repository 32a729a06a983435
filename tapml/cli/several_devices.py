"""Options, columns and output of `tapml validate` and `tapml replay` with several devices."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tapml.cli.remote_devices import on_standard_error
from tapml.runs.events import PhaseProgressed, PhaseStarted, Watcher

if TYPE_CHECKING:
    from tapml.matrix.implementation import Column
    from tapml.matrix.report import MatrixReport, Row

_PHASE: Final = "replay tests"


def add_matrix_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare ``--kernels`` and ``--report``."""
    group = parser.add_argument_group("several devices")
    group.add_argument(
        "--kernels",
        action="append",
        default=[],
        type=Path,
        metavar="FOLDER",
        help="hand-written kernels in place of compiled ones (see tapml kernel); may be given "
        "several times",
    )
    group.add_argument(
        "--report", type=Path, metavar="FILE", help="write the matrix as a page of HTML"
    )


def print_matrix(report: MatrixReport, arguments: argparse.Namespace) -> int:
    """Print a matrix, write its page if asked for; return the exit code."""
    from tapml.durable.files import write_text
    from tapml.matrix.page import render
    from tapml.matrix.report import lines_of

    if arguments.json:
        print(json.dumps(report.to_json(), indent=1, allow_nan=False))
    else:
        for line in lines_of(report):
            print(line)
    # Last: the results are printed even if the page cannot be written.
    if arguments.report is not None:
        write_text(arguments.report, render(report.to_json()))
        if not arguments.json:
            print(f"report: {arguments.report}")
    return report.exit_code


def columns_for(devices: Sequence[str], profile: str | None = None) -> list[Column]:
    """An unopened column for every named device.

    Raises
    ------
    InputError
        If a device is named twice or its name is invalid.
    """
    from tapml.devices.reach import open_device
    from tapml.matrix.implementation import OWN_SECONDS, columns_of

    check_names(devices)
    connecting = {
        each: partial(open_device, each, say=on_standard_error, own_seconds=OWN_SECONDS)
        for each in devices
    }
    return columns_of(connecting, len(devices), profile)


def check_names(devices: Sequence[str]) -> None:
    """Check that all names are valid, before anything slow."""
    from tapml.devices.reach import check_spec, is_remote
    from tapml_targets.ranking import parse_device

    for device in devices:
        check_spec(device)
        if not is_remote(device):
            parse_device(device)


def announce_absent(columns: Sequence[Column]) -> None:
    """Report devices that are missing in the matrix."""
    for column in columns:
        if column.problem:
            on_standard_error(f"{column.label} is not run: {column.problem}")


def announce_rows(watcher: Watcher, total: int) -> Callable[[Row], None]:
    """A callback that shows each operator's row to `watcher` as a step of one phase."""
    watcher(PhaseStarted(_PHASE, total=total))
    done = 0

    def tell(row: Row) -> None:
        nonlocal done
        done += 1
        different = ": implementations differ" if row.differences else ""
        watcher(PhaseProgressed(_PHASE, done, total, f"{row.operator} {row.status}{different}"))

    return tell
