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
from tapml.cli.model_arguments import number
from tapml.cli.pace import add_pace_arguments, pace_of
from tapml.cli.progress import watch
from tapml.cli.remote_devices import on_standard_error
from tapml.cli.several_devices import (
    add_matrix_arguments,
    announce_absent,
    announce_rows,
    columns_for,
    print_matrix,
)
from tapml.cli.suite_argument import open_suite
from tapml.cli.verdict_lines import VerdictLines
from tapml.runs.wording import counted
from tapml_targets.errors import EXIT_MISMATCH, InputError, NoSuchDeviceError
from tapml_targets.platforms import DEFAULT_PLATFORM

RUNS: Final = 2
"""Default runs of a test."""

if TYPE_CHECKING:
    from tapml.compiler.compiler import Compiler
    from tapml.failures.diagnosis import Diagnosis
    from tapml.replaying.failure import Failure
    from tapml.replaying.results import ReplayResult
    from tapml.replaying.suite_replay import SuiteReplayer
    from tapml.repro.folder import Repro
    from tapml.verdicts.policy import Policy
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
  tapml replay my-suite --diagnose               inner step, locations and cause of each failure
  tapml replay my-suite --explain prefill/layers.0.self_attn/softmax@p0.s0    why that verdict
  tapml replay my-suite --check                  on Oclgrind: memory faults with their source lines
  tapml replay my-suite --repro failures         a repro folder per operator that does not pass
  tapml replay my-suite --check --device cuda --kernels my-session/kernels    a hand-written one
  tapml replay my-suite --json > before.json     for `tapml diff` after an upgrade

A session or a folder of exported tests means the suite in it.
"""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "replay",
        help="replay carved tests, or a repro folder, on a device",
        description="Replay carved tests, or the failure in a repro folder, on a device.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "folder", type=Path, help="a suite, a session, a repro folder or a bundle (.tapml.zip)"
    )
    parser.add_argument(
        "--device",
        action="append",
        metavar="NAME",
        help="opencl, opencl:1, a server's address, tracker:NAME, browser (default: that of the "
        "session or repro, else opencl); several are also compared with each other",
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
        type=number("2 to 10000 runs", int, 2, 10_000),
        default=RUNS,
        metavar="N",
        help="runs of each test; more runs find rare races (default: %(default)s)",
    )
    add_check_arguments(parser)
    add_matrix_arguments(parser)
    add_pace_arguments(parser.add_argument_group("speed"))
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Replay; 0 if everything passes, 1 if not."""
    from tapml.bundle.source import read_failure

    repro = read_failure(arguments.folder)
    _refuse_what_has_no_effect(arguments, repro)
    devices: list[str] = arguments.device or _of_session(arguments, repro)
    if len(devices) > 1:
        return _replay_on_all(devices, arguments, repro)
    arguments.device = devices[0] if devices else None
    if arguments.report is not None:
        raise InputError("--report is for several devices: name two or more with --device")
    if arguments.kernels and (repro is not None or not arguments.check):
        raise InputError(
            "--kernels is for several devices, or for --check of a suite: name two or more with "
            "--device, or try one kernel with `tapml kernel check`"
        )
    if arguments.check:
        return run_check(arguments, repro)
    if arguments.explain is not None and repro is None:
        return _explain_test(arguments)
    return _replay_suite(arguments) if repro is None else _replay_repro(arguments, repro)


def _of_session(arguments: argparse.Namespace, repro: Repro | None) -> list[str]:
    """The device of a session whose tests are replayed; none for what is no session."""
    from tapml.devices.reach import is_remote
    from tapml.session.folder import is_session

    if repro is not None or not is_session(arguments.folder):
        return []
    from tapml.kernels.session_facts import read_facts
    from tapml_targets.ranking import find_device

    facts = read_facts(arguments.folder)
    device, target = facts.device, facts.settings.target
    if is_remote(device):
        # A checker is of this machine.
        return [target if arguments.check else device]
    try:
        find_device(device)
    except NoSuchDeviceError:
        on_standard_error(f"the session's device {device} is gone; using the best other one")
        return [target]
    return [device]


def _refuse_what_has_no_effect(arguments: argparse.Namespace, repro: Repro | None) -> None:
    """Raise InputError for options that would be silently ignored."""
    if arguments.check:
        where = "with --check, which checks memory accesses and not numbers"
        names: tuple[str, ...] = ("explain", "repro", "diagnose", "policy", "max-slowdown")
        if arguments.repeats != RUNS:
            raise InputError(f"--repeats has no effect {where}")
    elif repro is not None:
        where = f"on the one test in {arguments.folder}"
        names = ("operator", "layer", "step", "entry", "repro", "max-slowdown")
        if arguments.explain not in (None, "", repro.case.id):
            raise InputError(f"{arguments.folder} holds only the test {repro.case.id}")
    else:
        return
    for name in names:
        if getattr(arguments, name.replace("-", "_")) not in (None, [], False):
            raise InputError(f"--{name} has no effect {where}")


def _replay_on_all(devices: list[str], arguments: argparse.Namespace, repro: Repro | None) -> int:
    from tapml.verdicts.policy_file import policy_of

    for name in ("check", "explain", "repro", "diagnose"):
        if getattr(arguments, name) not in (None, False):
            raise InputError(f"--{name} works on one device only: name one with --device")
    if repro is not None:
        raise InputError(
            f"{arguments.folder} is one failure on one device: name one with --device, or replay "
            "the suite it came from on several"
        )
    filters, policy = filters_of(arguments), policy_of(arguments.policy)
    columns = columns_for(devices)
    with open_suite(arguments.folder, filters) as suite, watch(quiet=arguments.json) as watcher:
        from tapml.compiler.compiler import Compiler
        from tapml.matrix.running import opened
        from tapml.validation.run import run_validation
        from tapml.validation.suite_subject import SuiteSubject

        with opened(columns), Compiler() as compiler:
            announce_absent(columns)
            subject = SuiteSubject(suite, filters, title=str(arguments.folder))
            report = run_validation(
                subject,
                columns,
                compiler,
                policy,
                kernels=arguments.kernels,
                runs=arguments.repeats,
                pace=pace_of(arguments),
                on_row=announce_rows(watcher, len(subject.operators)),
            )
    return print_matrix(report, arguments)


def _replay_repro(arguments: argparse.Namespace, repro: Repro) -> int:
    from tapml.devices.reach import open_device
    from tapml.devices.self_test import session_self_test
    from tapml.repro.folder import device_like, replay_repro
    from tapml.verdicts.policy_file import read_policy
    from tapml.verdicts.verdict import accusation
    from tapml_rpc.local import open_local

    if arguments.policy is not None:
        repro = replace(repro, policy=read_policy(arguments.policy))
    wanted = arguments.device
    with (
        open_device(wanted, say=on_standard_error)
        if wanted
        else open_local(device_like(repro.device)) as session
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
        print(json.dumps(data, indent=1))
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
    from tapml.oracles.explain import explain

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
    from tapml.verdicts.policy_file import policy_of

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
    """Diagnose the failure, which needs the toolkit."""
    from tapml.compiler.compiler import Compiler
    from tapml.devices.reach import open_another
    from tapml.diagnosis.in_subprocess import diagnose_in_subprocess
    from tapml.repro.folder import failure_of

    failure, another = failure_of(repro, result, session.device), partial(open_another, session)
    with Compiler() as compiler:
        return diagnose_in_subprocess(failure, compiler, open_session=another).diagnosis


def _replay_suite(arguments: argparse.Namespace) -> int:
    from tapml.verdicts.policy_file import policy_of

    policy = policy_of(arguments.policy)
    with (
        watch(quiet=arguments.json) as watcher,
        _open_replayer(arguments, policy) as (replayer, compiler),
    ):
        found = replayer.replay(
            filters_of(arguments),
            on_operator=VerdictLines(watcher, shown=not arguments.json),
            on_failure=_Failures(arguments, compiler, replayer.session),
        )
    failed = [each for each in found.operators if each.status != "pass"]
    if arguments.json:
        print(json.dumps(found.to_json(), indent=1))
    else:
        probes = f" and {counted(found.probes, 'exact probe')}" if found.probes else ""
        of = counted(len(found.operators), "operator")
        many = f"{counted(len(failed), 'operator')} {'does' if len(failed) == 1 else 'do'} not pass"
        print(f"{counted(found.tests, 'test')}{probes} of {of}: {many if failed else 'all pass'}")
    return 0 if found.status == "pass" else EXIT_MISMATCH


@contextmanager
def _open_replayer(
    arguments: argparse.Namespace, policy: Policy
) -> Iterator[tuple[SuiteReplayer, Compiler]]:
    """Open suite, compiler, device and oracle together."""
    from tapml.devices.reach import is_remote, open_device
    from tapml.oracles.probing import is_probe
    from tapml_targets.ranking import find_device

    with open_suite(arguments.folder, filters_of(arguments)) as suite:
        if arguments.explain:
            named = arguments.explain
            suite.test(named.rpartition("/")[0] if is_probe(named) else named)
        wanted = arguments.device or DEFAULT_PLATFORM
        description = None if is_remote(wanted) else find_device(wanted)
        # Slow imports come after the checks of arguments.
        from tapml.compiler.compiler import Compiler
        from tapml.compiler.twin import compile_twins
        from tapml.oracles.expectation_store import store_of
        from tapml.oracles.oracle import Oracle
        from tapml.replaying.suite_replay import SuiteReplayer
        from tapml_rpc.local import open_local

        with (
            Compiler() as compiler,
            open_device(wanted, say=on_standard_error)
            if description is None
            else open_local(description) as session,
            Oracle(suite.operators, compile_twins, policy, cache=store_of(suite.path)) as oracle,
        ):
            yield (
                SuiteReplayer(
                    suite, session, compiler, oracle, policy,
                    runs=arguments.repeats, pace=pace_of(arguments),
                ),
                compiler,
            )  # fmt: skip


@dataclass(frozen=True)
class _Failures:
    """Diagnoses and writes down each failing operator, as asked."""

    arguments: argparse.Namespace
    compiler: Compiler
    session: Session

    def __call__(self, failure: Failure) -> None:
        """Report on standard error if JSON goes to standard output."""
        stream = sys.stderr if self.arguments.json else sys.stdout
        if self.arguments.diagnose:
            from tapml.devices.reach import open_another
            from tapml.diagnosis.in_subprocess import diagnose_in_subprocess

            another = partial(open_another, self.session)
            failure = diagnose_in_subprocess(failure, self.compiler, open_session=another)
            for line in failure.diagnosis.lines() if failure.diagnosis is not None else ():
                print(f"  {line}", file=stream, flush=True)
        if self.arguments.repro is not None:
            from tapml.repro.writing import write_repro

            folder = write_repro(self.arguments.repro / failure.operator.name, failure)
            print(f"  repro: {folder}", file=stream, flush=True)
