"""``tapml replay``: replay a suite or a repro folder on a device, without the model."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tapml.cli.carve import add_filter_arguments, filters_of
from tapml_targets.errors import EXIT_MISMATCH, CompileError

if TYPE_CHECKING:
    from tapml_targets.driver import DeviceDescription

_EPILOG: Final = """\
examples:
  tapml replay my-suite                          all of its tests, on the default OpenCL device
  tapml replay my-suite --device opencl:1 --operator '*softmax*'
  tapml replay my-session                        the tests that a session carved
  tapml replay my-session/repro/softmax          one failure again; needs no compiler and no model

The folder of a session stands for the suite in it.
"""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "replay",
        help="replay carved tests, or a repro folder, on a device",
        description="Replay carved tests, or the failure in a repro folder, on a device.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="a suite, a session or a repro folder")
    parser.add_argument(
        "--device", metavar="NAME", help="opencl, opencl:1 (default: opencl, or the repro's)"
    )
    add_filter_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Replay; 0 if everything passes, 1 if not."""
    from tapml.carving.repro_folder import is_repro

    if is_repro(arguments.folder):
        return _replay_repro(arguments)
    return _replay_suite(arguments)


def _replay_repro(arguments: argparse.Namespace) -> int:
    from tapml.carving.repro_folder import read_repro, replay_repro
    from tapml_rpc.local import open_local

    repro = read_repro(arguments.folder)
    with open_local(arguments.device or _failing_device(repro.device)) as session:
        result = replay_repro(repro, session)
        name = session.device.name
    if arguments.json:
        json.dump(result.to_json(), sys.stdout, indent=1)
        print()
    else:
        print(f"{result.verdict.status}: {result.test} on {name}: {result.verdict.reason}")
        if name != repro.device.get("name"):
            print(f"it was written for another device: {repro.device.get('name')}")
        if repro.edited:
            print(f"kernels edited since: {', '.join(repro.edited)}")
        if result.verdict.status != repro.status:
            print(f"when it was written: {repro.status}: {repro.reason}")
    return 0 if result.verdict.status == "pass" else EXIT_MISMATCH


def _failing_device(wanted: Mapping[str, Any]) -> DeviceDescription | str:
    """The device a repro folder was written for; the platform's default where it is not here."""
    from tapml_targets.ranking import list_devices

    platform, same = str(wanted["platform"]), ("name", "vendor_platform")
    for device in list_devices(platform):
        if all(getattr(device, each) == wanted.get(each) for each in same):
            return device
    return platform


def _replay_suite(arguments: argparse.Namespace) -> int:
    from tapml.carving.replay import replay_operator
    from tapml.carving.replay_memory import ReplayMemory
    from tapml.carving.suite import Suite
    from tapml.compare.expectation_store import store_of
    from tapml.compare.oracle import Oracle
    from tapml.compare.policy import Policy
    from tapml.compiler.compiler import Compiler
    from tapml.compiler.preflight import check
    from tapml.compiler.twin import compile_twins
    from tapml.offload.session import is_session
    from tapml.offload.workbench import SUITE
    from tapml_rpc.local import open_local
    from tapml_targets.target import Target

    filters, policy, verdicts = filters_of(arguments), Policy(), []
    device = arguments.device or "opencl"
    folder = arguments.folder / SUITE if is_session(arguments.folder) else arguments.folder
    with (
        Suite.open(folder) as suite,
        Compiler() as compiler,
        open_local(device) as session,
    ):
        tests: dict[str, list[Any]] = {}
        for test in suite.tests(filters):
            tests.setdefault(test.operator, []).append(test)
        operators = suite.operators
        target = Target(session.device.platform, limits=session.device.limits)
        wanted = [operators[name] for name in tests]
        with (
            Oracle(operators, compile_twins, policy, cache=store_of(suite.path)) as oracle,
            ReplayMemory(session) as memory,
        ):
            for operator, library in compiler.compile_all(wanted, target):
                if isinstance(library, CompileError):
                    reason = str(library)
                else:
                    reason = "; ".join(map(str, check(library, target.limits)))
                if isinstance(library, CompileError) or reason:
                    verdicts.append({"operator": operator.name, "status": "fail", "reason": reason})
                else:
                    verdict = replay_operator(
                        operator, tests[operator.name], library, session, oracle, policy,
                        memory=memory,
                    )  # fmt: skip
                    verdicts.append(verdict.to_json())
                if not arguments.json:
                    print(_line(verdicts[-1]), flush=True)
    if arguments.json:
        json.dump(verdicts, sys.stdout, indent=1)
        print()
    failed = [each for each in verdicts if each["status"] != "pass"]
    if not arguments.json:
        count = sum(len(each) for each in tests.values())
        print(f"{count} tests of {len(verdicts)} operators: {len(failed)} operators do not pass")
    return EXIT_MISMATCH if failed or not verdicts else 0


def _line(verdict: dict[str, Any]) -> str:
    counts = verdict.get("counts", {})
    passed = f"{counts.get('pass', 0)}/{sum(counts.values())} pass" if counts else ""
    ratio = verdict.get("worst_ratio")
    worst = f"worst ratio {ratio:.3g}" if isinstance(ratio, float) else ""
    why = "" if verdict["status"] == "pass" else str(verdict["reason"])
    return "  ".join(
        part for part in (verdict["status"], verdict["operator"], passed, worst, why) if part
    )
