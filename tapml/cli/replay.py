"""``tapml replay``: replay a suite or a repro folder on a device, without the model."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tapml.cli.carve import add_filter_arguments, filters_of
from tapml.cli.check import add_check_arguments, run_check
from tapml.cli.progress import watch
from tapml.cli.remote_devices import on_standard_error
from tapml.cli.suite_argument import open_suite
from tapml.cli.validate_matrix import add_matrix_arguments, replay_on_all
from tapml.cli.verdict_lines import VerdictLines
from tapml_targets.errors import EXIT_MISMATCH, InputError

RUNS: Final = 2
"""How often a test runs where nothing is said."""

if TYPE_CHECKING:
    from tapml.carving.replay_results import ReplayResult
    from tapml.carving.replay_suite import SuiteReplayer
    from tapml.carving.repro_failure import Failure
    from tapml.carving.repro_folder import Repro
    from tapml.compare.oracle import Oracle
    from tapml.compare.policy import Policy
    from tapml.compiler.compiler import Compiler
    from tapml.localize.diagnosis import Diagnosis
    from tapml_rpc.client import Session
    from tapml_targets.self_test.facts import SelfTest

_EPILOG: Final = """\
examples:
  tapml replay my-suite                          all of its tests, on the default OpenCL device
  tapml replay my-suite --device opencl:1 --operator '*softmax*'
  tapml replay my-suite --device webgpu:0 --device webgpu:1    both, and where they differ
  tapml replay my-session                        the tests that a session carved
  tapml replay my-session/repro/softmax          one failure again; needs no compiler and no model
  tapml replay softmax.tapml.zip                 the same from a bundle
  tapml replay my-suite --diagnose               inner step, places and cause of each failure
  tapml replay my-suite --explain prefill/layers.0.self_attn/softmax@p0.s0    why that verdict
  tapml replay my-suite --check                  on Oclgrind: memory faults with their source lines
  tapml replay my-suite --repro failures         a repro folder per operator that does not pass
  tapml replay my-suite --json > before.json     for `tapml diff` after an upgrade

The folder of a session, or of exported tests, stands for the suite in it.
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
    parser.add_argument(
        "folder", type=Path, help="a suite, a session, a repro folder or a bundle (.tapml.zip)"
    )
    parser.add_argument(
        "--device",
        action="append",
        metavar="NAME",
        help="opencl, opencl:1, a server's address, tracker:NAME, browser (default: opencl, or the "
        "repro's)",
    )
    add_filter_arguments(parser)
    parser.add_argument(
        "--repro",
        type=Path,
        metavar="FOLDER",
        help="write a repro folder for each failure",
    )
    parser.add_argument(
        "--diagnose", action="store_true", help="look for the inner step and the cause of failures"
    )
    parser.add_argument(
        "--explain",
        nargs="?",
        const="",
        metavar="TEST",
        help="show the arithmetic of one test's verdict; of a repro folder's without TEST",
    )
    parser.add_argument(
        "--policy", type=Path, metavar="FILE", help="limits of the verdicts, as TOML"
    )
    parser.add_argument(
        "--repeats",
        type=_repeats,
        default=RUNS,
        metavar="N",
        help="run each test so often; more find what races seldom (default: %(default)s)",
    )
    add_check_arguments(parser)
    add_matrix_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Replay; 0 if everything passes, 1 if not."""
    from tapml.bundle.source import read_failure

    repro = read_failure(arguments.folder)
    _refuse_what_has_no_effect(arguments, repro)
    devices: list[str] = arguments.device or []
    if len(devices) > 1:
        return _replay_on_all(devices, arguments, repro)
    arguments.device = devices[0] if devices else None
    if arguments.report is not None or arguments.kernels:
        raise InputError(
            "--report and --kernels are for several devices: name two or more with --device"
        )
    if arguments.check:
        return run_check(arguments, repro)
    if arguments.explain is not None and repro is None:
        return _explain_test(arguments)
    return _replay_suite(arguments) if repro is None else _replay_repro(arguments, repro)


def _refuse_what_has_no_effect(arguments: argparse.Namespace, repro: Repro | None) -> None:
    """An option that would be passed over in silence is a mistake.

    Raises
    ------
    InputError
        If there is one.
    """
    if arguments.check:
        where = "with --check, which looks at accesses to memory and judges no numbers"
        names: tuple[str, ...] = ("explain", "repro", "diagnose", "policy")
        if arguments.repeats != RUNS:
            raise InputError(f"--repeats says nothing {where}")
    elif repro is not None:
        where = f"of the one test in {arguments.folder}"
        names = ("operator", "layer", "step", "entry", "repro")
        if arguments.explain not in (None, "", repro.case.id):
            raise InputError(f"{arguments.folder} holds the test {repro.case.id} alone")
    else:
        return
    for name in names:
        if getattr(arguments, name) not in (None, [], False):
            raise InputError(f"--{name} says nothing {where}")


def _replay_on_all(devices: list[str], arguments: argparse.Namespace, repro: Repro | None) -> int:
    from tapml.compare.policy_file import policy_of

    for name in ("check", "explain", "repro", "diagnose"):
        if getattr(arguments, name) not in (None, False):
            raise InputError(f"--{name} says nothing of several devices: name one with --device")
    if repro is not None:
        raise InputError(
            f"{arguments.folder} is one failure on one device: name one with --device, or replay "
            "the suite it came from on several"
        )
    return replay_on_all(arguments, policy_of(arguments.policy), filters_of(arguments), devices)


def _replay_repro(arguments: argparse.Namespace, repro: Repro) -> int:
    from tapml.carving.repro_device import device_of
    from tapml.carving.repro_folder import replay_repro
    from tapml.compare.policy_file import read_policy
    from tapml.compare.verdict import accusation
    from tapml_rpc.known_self_test import session_self_test
    from tapml_rpc.local import open_local
    from tapml_rpc.reach import open_device

    if arguments.policy is not None:
        repro = replace(repro, policy=read_policy(arguments.policy))
    wanted = arguments.device
    with (
        open_device(wanted, say=on_standard_error)
        if wanted
        else open_local(device_of(repro)) as session
    ):
        result = replay_repro(repro, session, runs=arguments.repeats)
        device = session.device
        passed = result.verdict.status == "pass"
        found = _diagnosed(repro, result, session) if arguments.diagnose and not passed else None
        measured = None if arguments.explain is None else session_self_test(session)
    if arguments.explain is not None:
        print(_explained(repro, result, measured), end="")
        return 0 if passed else EXIT_MISMATCH
    if arguments.json:
        data = result.to_json() | ({} if found is None else {"diagnosis": found.to_json()})
        json.dump(data, sys.stdout, indent=1)
        print()
        return 0 if passed else EXIT_MISMATCH
    print(f"{result.verdict.status}: {result.test} on {device.name}: {result.verdict.reason}")
    if device.name != repro.device.get("name"):
        print(f"it was written for another device: {repro.device.get('name')}")
    if accusation(result.verdict.suspect):
        print(accusation(result.verdict.suspect))
    if repro.edited:
        print(f"kernels edited since: {', '.join(repro.edited)}")
    if result.verdict.status != repro.status:
        print(f"when it was written: {repro.status}: {repro.reason}")
    for line in () if found is None else found.lines():
        print(f"  {line}")
    return 0 if passed else EXIT_MISMATCH


def _explained(repro: Repro, result: ReplayResult, measured: SelfTest | None) -> str:
    from tapml.compare.explain import explain

    outputs = repro.case.read_outputs()
    return explain(
        result.verdict,
        repro.expectation,
        repro.policy,
        repro.operator,
        reference=outputs,
        self_test=measured,
    )


def _explain_test(arguments: argparse.Namespace) -> int:
    from tapml.compare.policy_file import policy_of

    if not arguments.explain:
        raise InputError(
            f"--explain needs the id of a test of {arguments.folder}, such as a verdict's reason "
            f"begins with; `tapml inspect {arguments.folder} --tests` lists them"
        )
    with _open_replayer(arguments, policy_of(arguments.policy)) as (replayer, _):
        result, text = replayer.explain(arguments.explain)
    print(text, end="")
    return 0 if result.verdict.status == "pass" else EXIT_MISMATCH


def _diagnosed(repro: Repro, result: ReplayResult, session: Session) -> Diagnosis | None:
    """What localization finds now; it compiles, so it needs the toolkit."""
    from tapml.carving.repro_folder import failure_of
    from tapml.compiler.compiler import Compiler
    from tapml.localize.apart import diagnosed
    from tapml_rpc.reach import open_another

    failure, another = failure_of(repro, result, session.device), partial(open_another, session)
    with Compiler() as compiler:
        return diagnosed(failure, compiler, open_session=another).diagnosis


def _replay_suite(arguments: argparse.Namespace) -> int:
    from tapml.compare.policy_file import policy_of

    policy = policy_of(arguments.policy)
    with (
        watch(quiet=arguments.json) as watcher,
        _open_replayer(arguments, policy) as (replayer, compiler),
    ):
        found = replayer.replay(
            filters_of(arguments),
            on_operator=VerdictLines(watcher, shown=not arguments.json),
            on_failure=_Failures(arguments, compiler, replayer.oracle, replayer.session),
        )
    failed = [each for each in found.operators if each.status != "pass"]
    if arguments.json:
        json.dump(found.to_json(), sys.stdout, indent=1)
        print()
    else:
        count = len(found.operators)
        probes = f" and {found.probes} exact probes" if found.probes else ""
        print(
            f"{found.tests} tests{probes} of {count} operators: {len(failed)} operators do not pass"
        )
    return 0 if found.status == "pass" else EXIT_MISMATCH


@contextmanager
def _open_replayer(
    arguments: argparse.Namespace, policy: Policy
) -> Iterator[tuple[SuiteReplayer, Compiler]]:
    """The suite, the compiler, the device and the oracle, open together."""
    from tapml.carving.probing import is_probe
    from tapml_rpc.reach import is_remote, open_device
    from tapml_targets.ranking import find_device

    with open_suite(arguments.folder, filters_of(arguments)) as suite:
        if arguments.explain:
            named = arguments.explain
            suite.test(named.rpartition("/")[0] if is_probe(named) else named)
        wanted = arguments.device or "opencl"
        description = None if is_remote(wanted) else find_device(wanted)
        # What takes seconds to import comes after what can be mistyped.
        from tapml.carving.replay_suite import SuiteReplayer
        from tapml.compare.expectation_store import store_of
        from tapml.compare.oracle import Oracle
        from tapml.compiler.compiler import Compiler
        from tapml.compiler.twin import compile_twins
        from tapml_rpc.local import open_local

        with (
            Compiler() as compiler,
            open_device(wanted, say=on_standard_error)
            if description is None
            else open_local(description) as session,
            Oracle(suite.operators, compile_twins, policy, cache=store_of(suite.path)) as oracle,
        ):
            yield (
                SuiteReplayer(suite, session, compiler, oracle, policy, runs=arguments.repeats),
                compiler,
            )


@dataclass(frozen=True)
class _Failures:
    """What is done with each failing operator: looked into, written down."""

    arguments: argparse.Namespace
    compiler: Compiler
    oracle: Oracle
    session: Session

    def __call__(self, failure: Failure) -> None:
        """Diagnose and write a repro folder, as asked; JSON on standard output stays alone."""
        stream = sys.stderr if self.arguments.json else sys.stdout
        if self.arguments.diagnose:
            from tapml.localize.apart import diagnosed
            from tapml_rpc.reach import open_another

            another = partial(open_another, self.session)
            failure = diagnosed(failure, self.compiler, oracle=self.oracle, open_session=another)
            for line in failure.diagnosis.lines() if failure.diagnosis is not None else ():
                print(f"  {line}", file=stream, flush=True)
        if self.arguments.repro is not None:
            from tapml.carving.replay_repro import write_repro

            folder = write_repro(self.arguments.repro / failure.operator.name, failure)
            print(f"  repro: {folder}", file=stream, flush=True)


def _repeats(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 2 <= int(text) <= 10_000):
        raise argparse.ArgumentTypeError(f"expected 2 to 10000 runs, got {text!r}")
    return int(text)
