"""``tapml replay --check``: the same tests on Oclgrind, which sees every access to memory."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from tapml.cli.carve import filters_of
from tapml.cli.suite_argument import open_suite
from tapml_targets.errors import EXIT_MISMATCH, NoSuchDeviceError

if TYPE_CHECKING:
    from tapml.carving.repro_folder import Repro
    from tapml.check.checked_replay import CheckReport
    from tapml.check.checker import Checker
    from tapml.check.operator_check import OperatorCheck
    from tapml_targets.limits import Limits


def add_check_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare ``--check`` and its options on the parser of ``tapml replay``."""
    parser.add_argument(
        "--check",
        action="store_true",
        help="replay on Oclgrind: out-of-bounds accesses, races, divergent barriers and "
        "uninitialised reads, each with its source line",
    )
    parser.add_argument(
        "--check-seconds",
        type=_seconds,
        default=20.0,
        metavar="SECONDS",
        help="time for each operator with --check; its first test always runs "
        "(default: %(default)g)",
    )


def run_check(arguments: argparse.Namespace, repro: Repro | None) -> int:
    """Check; 0 without findings, 1 with some, or where an operator could not be checked."""
    report = _check_suite(arguments) if repro is None else _check_repro(arguments, repro)
    if arguments.json:
        json.dump(report.to_json(), sys.stdout, indent=1)
        print()
    else:
        print(report.summary())
    return 0 if report.status == "pass" else EXIT_MISMATCH


def _check_repro(arguments: argparse.Namespace, repro: Repro) -> CheckReport:
    from tapml.check.checked_replay import check_repro
    from tapml.check.checker import open_checker

    with open_checker() as checker:
        report = check_repro(repro, str(arguments.folder), checker, seconds=arguments.check_seconds)
    if not arguments.json:
        _print(report.operators[0])
        if repro.edited:
            print(f"kernels edited since: {', '.join(repro.edited)}")
    return report


def _check_suite(arguments: argparse.Namespace) -> CheckReport:
    filters = filters_of(arguments)
    with open_suite(arguments.folder, filters) as suite:
        # What takes seconds to import comes after what can be mistyped.
        from tapml.check.checked_replay import replay_checked
        from tapml.check.checker import open_checker
        from tapml.compiler.compiler import Compiler
        from tapml_targets.target import Target

        with Compiler() as compiler, open_checker() as checker:
            platform, limits = _meant_for(arguments.device, checker)
            return replay_checked(
                suite,
                compiler,
                Target(platform, limits=limits),
                checker,
                filters,
                seconds=arguments.check_seconds,
                on_operator=None if arguments.json else _print,
            )


def _meant_for(device: str | None, checker: Checker) -> tuple[str, Limits]:
    """Platform and limits of the device the kernels are compiled for.

    Without a device of its own the machine has the simulator's.
    """
    from tapml_targets.ranking import find_device

    if device is not None:
        named = find_device(device)
        return named.platform, named.limits
    with suppress(NoSuchDeviceError):
        default = find_device("opencl")
        return default.platform, default.limits
    return checker.session.device.platform, checker.session.device.limits


def _print(report: OperatorCheck) -> None:
    from tapml.check.checked_replay import operator_lines

    print("\n".join(operator_lines(report)), flush=True)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError(f"expected a time in seconds, got {text!r}")
    return seconds
