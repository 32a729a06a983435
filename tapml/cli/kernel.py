"""``tapml kernel``: write, check and watch hand-written kernels of a session's operators."""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tapml.cli.model_arguments import number
from tapml.cli.termination import exit_code_of
from tapml_targets.errors import EXIT_DEVICE_LOST, EXIT_MISMATCH, EXIT_USAGE
from tapml_targets.platforms import DEFAULT_PLATFORM

if TYPE_CHECKING:
    from tapml.kernels.session_facts import SessionFacts
    from tapml.kernels.trial import KernelTrial
    from tapml.kernels.trial_result import Outcome, TrialResult
    from tapml_targets.target import Target

_EPILOG: Final = """\
examples:
  tapml kernel new my-session softmax            start from the compiled kernel
  tapml kernel check my-session softmax          build it, replay all carved tests, compare times
  tapml kernel check my-session softmax --watch  again after every save
  tapml kernel list my-session
  tapml offload --session my-session             moves the operator with the kernel

A kernel is in my-session/kernels/<operator>/<target>/; its kernel.toml describes the launch
(docs/kernels.md). `check` writes only the cache of expectations into the session.
"""
_SHARED_HELP: Final = "a folder of kernels shared between sessions (see tapml offload --kernels)"
_EXIT_CODES: Final[dict[Outcome, int]] = {
    "pass": 0,
    "does not fit": EXIT_USAGE,
    "does not build": EXIT_USAGE,
    "device lost": EXIT_DEVICE_LOST,
}


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "kernel",
        help="write, check and watch hand-written kernels",
        description="Hand-written kernels of a session's operators.",
        epilog=_EPILOG,
    )
    commands = parser.add_subparsers(dest="kernel_command", metavar="COMMAND", required=True)
    _add_new(commands)
    _add_check(commands)
    _add_list(commands)


def _add_new(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "new",
        help="write a starting point",
        description="Write manifest and source of a kernel: the compiled one, or a skeleton if "
        "there is none.",
        epilog="examples:\n  tapml kernel new my-session softmax\n"
        "  tapml kernel new my-session softmax --shared ~/kernels\n",
    )
    _add_session_and_operator(parser)
    parser.add_argument(
        "--shared", type=Path, metavar="FOLDER", help="write it there, not into the session"
    )
    parser.set_defaults(run=run_new)


def _add_check(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "check",
        help="build a kernel and replay the operator's carved tests",
        description="Build a hand-written kernel on the session's device and replay the operator's"
        "\ncarved tests as the session would, with the times of the compiled kernel and the\n"
        "reference.",
        epilog="examples:\n  tapml kernel check my-session softmax\n"
        "  tapml kernel check my-session softmax --watch\n"
        "  tapml kernel check my-session softmax --watch --json | jq .outcome\n\n"
        "exit codes: 0 pass; 1 a test does not pass; 2 it does not fit or does not build;\n"
        "  3 no such device; 4 the kernel crashed the device or hung; 130 Ctrl-C\n",
    )
    _add_session_and_operator(parser)
    parser.add_argument("--watch", action="store_true", help="check again after every save")
    count = parser.add_mutually_exclusive_group()
    count.add_argument(
        "--tests",
        type=number("a number of tests", int, 1, 1_000_000),
        metavar="N",
        help="replay N of the tests, every shape first (default: all; with --watch, 16 first)",
    )
    count.add_argument(
        "--all-tests", action="store_true", help="with --watch: all of them before the verdict"
    )
    parser.add_argument(
        "--shared", type=Path, action="append", default=[], metavar="FOLDER", help=_SHARED_HELP
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        help=f"{DEFAULT_PLATFORM}:1, a server's address, tracker:NAME, browser "
        "(default: the session's)",
    )
    parser.add_argument(
        "--deadline",
        type=number("0.1 to 3600 seconds", float, 0.1, 3600),
        metavar="SECONDS",
        help="a kernel that runs longer counts as hanging (default: 20)",
    )
    parser.add_argument("--json", action="store_true", help="verdicts as JSON, one line each")
    parser.set_defaults(run=run_check)


def _add_list(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "list",
        help="hand-written kernels and their last verdicts",
        description="The hand-written kernels that a session would use, with their folders and "
        "last verdicts.",
        epilog="examples:\n  tapml kernel list my-session\n",
    )
    parser.add_argument("session", type=Path, help="folder of the session")
    parser.add_argument(
        "--shared", type=Path, action="append", default=[], metavar="FOLDER", help=_SHARED_HELP
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.set_defaults(run=run_list)


def _add_session_and_operator(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", type=Path, help="folder of the session")
    parser.add_argument("operator", help="name of the operator, as the report shows it")


def run_new(arguments: argparse.Namespace) -> int:
    """Write the starting point."""
    from tapml.kernels.compiled import compiled_library
    from tapml.kernels.session_facts import find_operator, read_facts
    from tapml.kernels.starting_point import write_starting_point
    from tapml.suite.suite import Suite

    facts = read_facts(arguments.session)
    with Suite.open(facts.suite) as suite:
        operator = find_operator(suite, arguments.operator)
        tests = tuple(suite.tests_of(operator.name))
        target = _target(facts)
        folder = arguments.shared or facts.kernel_folders()[0]
        written = write_starting_point(
            folder, operator, tests, target, lambda: compiled_library(operator, target)
        )
    begins = "the compiled kernel" if written.compiled else "a skeleton that writes nothing yet"
    print(f"{written.folder}: {', '.join(written.files)}")
    print(f"it starts from {begins}")
    if written.why:
        print(f"  {written.why}")
    where = shlex.quote(str(arguments.session))
    shared = shlex.quote(str(arguments.shared)) if arguments.shared else ""
    checked, used = (f" {option} {shared}" * bool(shared) for option in ("--shared", "--kernels"))
    print(f"try it:  tapml kernel check {where} {operator.name} --watch{checked}")
    print(f"use it:  tapml offload --session {where}{used}")
    return 0


def run_check(arguments: argparse.Namespace) -> int:
    """Check once, or after every save."""
    from tapml.kernels.session_facts import read_facts
    from tapml.kernels.trial import DEADLINE_SECONDS, KernelTrial

    facts = read_facts(arguments.session)
    with KernelTrial(
        facts,
        arguments.operator,
        shared=arguments.shared,
        device=arguments.device,
        deadline_seconds=arguments.deadline or DEADLINE_SECONDS,
        patient=not arguments.watch,
    ) as trial:
        if arguments.watch:
            return _watch(trial, arguments)
        result = _check_once(trial, arguments)
    if arguments.json:
        print(json.dumps(result.to_json()))
    else:
        from tapml.kernels.screen import result_lines

        print("\n".join(result_lines(result)))
    return _EXIT_CODES.get(result.outcome, EXIT_MISMATCH)


def _check_once(trial: KernelTrial, arguments: argparse.Namespace) -> TrialResult:
    """Replay the chosen tests once; add the times of compiled kernel and reference."""
    from tapml.kernels.float64_sides import reference_ms, reference_of
    from tapml.kernels.sample_tests import choose
    from tapml.kernels.trial_result import Times
    from tapml_targets.errors import TapmlError

    tests = choose(trial.tests, arguments.tests or len(trial.tests))
    if not arguments.json:
        print(
            f"{trial.operator.name} on {trial.description.name}: {trial.manifest.parent}",
            flush=True,
        )
    result = trial.look(trial.probing.tests(trial.operator, tests))
    if not result.tests:
        return result
    reference = None
    try:
        reference = reference_ms(reference_of(trial.operator)(), trial.operator, tests)
    except (TapmlError, ModuleNotFoundError) as error:
        print(f"the reference's time is not known: {error}", file=sys.stderr)
    return replace(result, times=Times(result.times.kernel, trial.compiled_ms(tests), reference))


def _watch(trial: KernelTrial, arguments: argparse.Namespace) -> int:
    from tapml.kernels.sample_tests import QUICK
    from tapml.kernels.screen import watching
    from tapml.kernels.watching import BUDGET_SECONDS, Watch

    count = len(trial.tests) if arguments.all_tests else arguments.tests or QUICK
    try:
        with watching(trial, as_json=arguments.json) as tell:
            Watch(
                trial,
                count,
                tell,
                everything=arguments.tests is None,
                budget_seconds=math.inf if arguments.all_tests else BUDGET_SECONDS,
            ).run()
    except KeyboardInterrupt as interrupt:
        return exit_code_of(interrupt)


def run_list(arguments: argparse.Namespace) -> int:
    """Print the kernels that a session would use."""
    from tapml.kernels.listing import list_kernels
    from tapml.kernels.session_facts import read_facts

    facts = read_facts(arguments.session)
    found = list_kernels(facts, _target_here_or_not(facts), arguments.shared)
    if arguments.json:
        print(json.dumps([each.to_json() for each in found], indent=1))
        return 0
    for each in found:
        print(each.line())
    if not found:
        print(f"no hand-written kernel; `tapml kernel new {arguments.session} OPERATOR` starts one")
    return 0


def _target(facts: SessionFacts) -> Target:
    """The session's target with its device's limits."""
    from tapml.devices.reach import describe_device

    return facts.target(describe_device(facts.device).limits)


def _target_here_or_not(facts: SessionFacts) -> Target:
    """The same; without limits if the device is absent."""
    from tapml_targets.errors import NoSuchDeviceError, SetupError
    from tapml_targets.target import Target

    try:
        return _target(facts)
    except (NoSuchDeviceError, SetupError):
        return Target(facts.settings.target)
