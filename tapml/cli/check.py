"""``tapml replay --check``: the tests on a checker, which sees every memory access."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tapml.cli.carve import filters_of
from tapml.cli.model_arguments import seconds
from tapml.cli.suite_argument import open_suite
from tapml_targets.errors import EXIT_MISMATCH, InputError, NoSuchDeviceError
from tapml_targets.platforms import DEFAULT_PLATFORM

if TYPE_CHECKING:
    from tapml.check.checked_replay import CheckReport
    from tapml.check.checker import Checker
    from tapml.check.operator_check import OperatorCheck
    from tapml.repro.folder import Repro
    from tapml.suite.selection import Filters
    from tapml.suite.suite import Suite
    from tapml_targets.library import Library
    from tapml_targets.limits import Limits
    from tapml_targets.target import Target


def add_check_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare ``--check`` and its options on the parser of ``tapml replay``."""
    parser.add_argument(
        "--check",
        action="store_true",
        help="replay on the platform's checker: out-of-bounds accesses, races, divergent "
        "barriers and uninitialised reads, each with its source line",
    )
    parser.add_argument(
        "--check-seconds",
        type=seconds,
        default=20.0,
        metavar="SECONDS",
        help="time for each operator with --check; its first test always runs "
        "(default: %(default)g)",
    )


def run_check(arguments: argparse.Namespace, repro: Repro | None) -> int:
    """Check; 1 if there are findings or an operator could not be checked, else 0."""
    report = _check_suite(arguments) if repro is None else _check_repro(arguments, repro)
    if arguments.json:
        print(json.dumps(report.to_json(), indent=1))
    else:
        print(report.summary())
    return 0 if report.status == "pass" else EXIT_MISMATCH


def _check_repro(arguments: argparse.Namespace, repro: Repro) -> CheckReport:
    from tapml.check.checked_replay import check_repro
    from tapml.check.checker import open_checker

    with open_checker(repro.library.target) as checker:
        report = check_repro(repro, str(arguments.folder), checker, seconds=arguments.check_seconds)
    if not arguments.json:
        _print(report.operators[0])
        if repro.edited:
            print(f"kernels edited since: {', '.join(repro.edited)}")
    return report


def _check_suite(arguments: argparse.Namespace) -> CheckReport:
    filters = filters_of(arguments)
    with open_suite(arguments.folder, filters) as suite:
        # Slow imports come after the checks of arguments.
        from tapml.check.checked_replay import replay_checked
        from tapml.check.checker import open_checker
        from tapml.compiler.compiler import Compiler
        from tapml_targets.ranking import parse_device
        from tapml_targets.target import Target

        platform, index = parse_device(arguments.device or DEFAULT_PLATFORM)
        with Compiler() as compiler, open_checker(platform, device=index) as checker:
            target = Target(platform, limits=_limits_of(arguments.device, checker))
            return replay_checked(
                suite,
                compiler,
                target,
                checker,
                filters,
                seconds=arguments.check_seconds,
                libraries=_hand_written(arguments.kernels, suite, filters, target),
                on_operator=None if arguments.json else _print,
            )


def _hand_written(
    folders: list[Path], suite: Suite, filters: Filters, target: Target
) -> dict[str, Library]:
    """The hand-written kernels of the operators to check; each is named on standard error."""
    if not folders:
        return {}
    from tapml.kernels.manifest import MANIFEST
    from tapml.kernels.written import WrittenKernels

    written, found = WrittenKernels(folders, target), {}
    for name in sorted(suite.tested_operators(filters)):
        kernel = written.find(suite.operators[name])
        if kernel is not None:
            found[name] = kernel.library
            print(f"{name}: the kernel in {kernel.folder}", file=sys.stderr)
    if not found:
        where = ", ".join(map(str, folders))
        raise InputError(
            f"--kernels: {where} has no {target.platform} kernel of the operators to check; "
            f"expected <folder>/<operator>/{target.platform}/{MANIFEST} (`tapml kernel new` writes "
            "one)"
        )
    return found


def _limits_of(device: str | None, checker: Checker) -> Limits:
    """The limits to compile for; the checker's if no index is named and the machine has none."""
    from tapml_targets.ranking import find_device, parse_device

    try:
        return find_device(device or checker.platform).limits
    except NoSuchDeviceError:
        if device is not None and parse_device(device)[1] is not None:
            raise
    return checker.session.device.limits


def _print(report: OperatorCheck) -> None:
    from tapml.check.checked_replay import operator_lines

    print("\n".join(operator_lines(report)), flush=True)
