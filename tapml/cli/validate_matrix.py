"""``tapml validate`` and ``tapml replay`` with several devices: the matrix of implementations."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tapml.cli.progress import watch
from tapml.cli.remote_devices import on_standard_error
from tapml.offload.events import PhaseProgressed, PhaseStarted, Watcher
from tapml_targets.errors import DeviceLostError, TapmlError

if TYPE_CHECKING:
    from tapml.compare.policy import Policy
    from tapml.matrix.compiling import Libraries
    from tapml.matrix.implementation import Column
    from tapml.matrix.report import Cell, MatrixReport, Row
    from tapml.offload.model_check import ReferenceTrace
    from tapml.offload.phases import Phases
    from tapml.offload.rooted_reference import RootedReference
    from tapml.offload.settings import Settings

_PHASE: Final = "replay tests"


def add_matrix_arguments(parser: argparse.ArgumentParser) -> None:
    """``--kernels`` and ``--report``, which several devices take."""
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


def validate_on_all(
    settings: Settings, devices: Sequence[str], arguments: argparse.Namespace, policy: Policy
) -> int:
    """Carve the model's tests, replay them on all devices, run the whole model on each."""
    _check_names(devices)
    with watch(quiet=arguments.quiet or arguments.json) as watcher:
        from tapml.carving.record import carve
        from tapml.compiler.compiler import Compiler
        from tapml.execute.executor import Executor
        from tapml.matrix.compiling import common_limits
        from tapml.matrix.running import opened
        from tapml.matrix.suite_matrix import SuiteMatrix
        from tapml.offload.model_check import trace_reference
        from tapml.offload.phases import Phases
        from tapml.offload.rooted_reference import open_rooted_reference

        phases, columns = Phases(watcher), open_columns(devices)
        with (
            opened(columns),
            Compiler(workers=arguments.workers or None) as compiler,
            tempfile.TemporaryDirectory(prefix="tapml-validate-") as folder,
        ):
            _tell_absent(columns)
            limits = [column.description.limits for column in columns if column.opened]
            rooted = open_rooted_reference(
                settings,
                phases,
                # A model whose dtype is not asked for runs in what all of them have.
                limits=common_limits(limits) if limits and settings.dtype == "auto" else None,
                every_entry=True,
            )
            executor = Executor(rooted.imported.plan, rooted.imported.weights, rooted.reference)
            with phases.phase("carve tests", group="overhead", platform="llvm", once=True) as phase:
                suite = carve(
                    rooted.model,
                    executor,
                    rooted.prompts,
                    Path(folder) / "suite",
                    max_new_tokens=settings.new_tokens,
                    budget_bytes=settings.budget_bytes,
                )
                phase.detail = f"{suite.facts['tests']} tests"
            trace = trace_reference(
                rooted.model.stored,
                executor,
                rooted.prompts,
                settings.new_tokens,
                rooted.logit_deviation,
            )
            with suite:
                matrix = SuiteMatrix(suite, columns, policy, kernels=arguments.kernels)
                report = matrix.run(
                    compiler,
                    title=rooted.model.name,
                    on_row=_telling(watcher, len(rooted.imported.plan.operators)),
                    whole=partial(_whole_model, rooted, trace, phases, policy),
                )
    return print_matrix(report, arguments)


def replay_on_all(
    arguments: argparse.Namespace, policy: Policy, filters: Any, devices: Sequence[str]
) -> int:
    """Replay a suite on all devices."""
    from tapml.cli.suite_argument import open_suite

    _check_names(devices)
    with open_suite(arguments.folder, filters) as suite:
        columns = open_columns(devices)
        with watch(quiet=arguments.json) as watcher:
            from tapml.compiler.compiler import Compiler
            from tapml.matrix.running import opened
            from tapml.matrix.suite_matrix import SuiteMatrix

            with opened(columns), Compiler() as compiler:
                _tell_absent(columns)
                matrix = SuiteMatrix(
                    suite,
                    columns,
                    policy,
                    filters,
                    kernels=arguments.kernels,
                    runs=arguments.repeats,
                )
                count = len(suite.tested_operators(filters))
                report = matrix.run(
                    compiler, title=str(arguments.folder), on_row=_telling(watcher, count)
                )
    return print_matrix(report, arguments)


def print_matrix(report: MatrixReport, arguments: argparse.Namespace) -> int:
    """Print a matrix, write its page where one is asked for; return the exit code."""
    from tapml.durable.files import write_text
    from tapml.matrix.page import render
    from tapml.matrix.text import lines_of

    if arguments.json:
        json.dump(report.to_json(), sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        for line in lines_of(report):
            print(line)
    # Last: a page that cannot be written takes nothing along of what was found.
    if arguments.report is not None:
        write_text(arguments.report, render(report.to_json()))
        if not arguments.json:
            print(f"report: {arguments.report}")
    return report.exit_code


def open_columns(devices: Sequence[str]) -> list[Column]:
    """A column for every device that was named.

    Raises
    ------
    InputError
        If one was named twice, or is no device's name at all.
    """
    from tapml.matrix.implementation import OWN_SECONDS, columns_of
    from tapml_rpc.reach import open_device

    _check_names(devices)
    connecting = {
        each: partial(open_device, each, say=on_standard_error, own_seconds=OWN_SECONDS)
        for each in devices
    }
    return columns_of(connecting, len(devices))


def _check_names(devices: Sequence[str]) -> None:
    """See that all are names of devices, which takes no time, before anything that does."""
    from tapml_rpc.reach import check_spec, is_remote
    from tapml_targets.ranking import parse_device

    for device in devices:
        check_spec(device)
        if not is_remote(device):
            parse_device(device)


def _tell_absent(columns: Sequence[Column]) -> None:
    """Who waits for a matrix hears at once which device is not in it."""
    for column in columns:
        if column.problem:
            on_standard_error(f"{column.label} is not run: {column.problem}")


def _telling(watcher: Watcher, total: int) -> Callable[[Row], None]:
    watcher(PhaseStarted(_PHASE, total=total))
    done = 0

    def tell(row: Row) -> None:
        nonlocal done
        done += 1
        different = ": implementations differ" if row.differences else ""
        watcher(PhaseProgressed(_PHASE, done, total, f"{row.operator} {row.status}{different}"))

    return tell


def _whole_model(
    rooted: RootedReference,
    trace: ReferenceTrace,
    phases: Phases,
    policy: Policy,
    columns: Sequence[Column],
    libraries: Mapping[str, Libraries],
) -> Row:
    """The whole model on every device: logits on the reference's tokens."""
    from tapml.compare.verdict import Verdict
    from tapml.matrix.comparing import Comparison, Ran
    from tapml.matrix.report import WHOLE, Row

    ran: dict[str, Ran] = {}
    cells: dict[str, Cell] = {}
    for column in columns:
        with phases.phase(
            "end-to-end validation", group="rooting", platform=column.label, once=False
        ) as phase:
            cells[column.label] = cell = _model_cell(rooted, trace, column, libraries)
            phase.detail = f"{column.label}: {cell.status}"
        verdict = Verdict(cell.status, cell.worst_ratio, (), cell.reason)
        ran[column.label] = Ran(column.implementation(), verdict)
    differences = []
    for platform in libraries:
        comparison = Comparison(WHOLE, (WHOLE,), platform, policy)
        own = [ran[column.label] for column in columns if column.platform == platform]
        comparison.add(WHOLE, own, lambda: None, lambda: None)
        if comparison.difference is not None:
            differences.append(comparison.difference)
    return Row(WHOLE, (), cells, tuple(differences))


def _model_cell(
    rooted: RootedReference,
    trace: ReferenceTrace,
    column: Column,
    libraries: Mapping[str, Libraries],
) -> Cell:
    from tapml.compiler.link import link_entries
    from tapml.execute.plan_runner import PlanRunner
    from tapml.matrix.report import Cell
    from tapml.offload.model_check import check_model
    from tapml_targets.library import Library

    if column.session is None:
        return Cell("not run", 0.0, 0, column.problem)
    plan, compiled = rooted.imported.plan, libraries[column.platform]
    linked = {name: each for name, each in compiled.items() if isinstance(each, Library)}
    missing = [name for name in plan.operators if name not in linked]
    if missing:
        return Cell("not run", 0.0, 0, f"these operators have no kernel: {', '.join(missing)}")
    try:
        with PlanRunner(
            plan, rooted.imported.weights, link_entries(plan, linked), column.session
        ) as runner:
            verdict = check_model(rooted.model.stored, runner, trace)
    except DeviceLostError as error:
        column.lose(f"the device was lost in the whole model: {error}", error.exit_code)
        return Cell("fail", 0.0, 0, f"the device was lost: {error}")
    except (TapmlError, OSError) as error:
        return Cell("fail", 0.0, 0, str(error))
    return Cell(
        verdict.status, verdict.max_absolute / verdict.allowed.value, len(trace.prompts),
        verdict.reason,
    )  # fmt: skip
