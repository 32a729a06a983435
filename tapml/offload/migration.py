"""One run of a session, from its open context to its report."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tapml.durable.files import write_json, write_text
from tapml.execute.device_reference import described, reference_facts
from tapml.offload.algorithm import Algorithm
from tapml.offload.context import MigrationContext
from tapml.offload.finish import discard_finished, finish
from tapml.offload.report_refresh import RefreshingReport
from tapml.replaying.memory import ReplayMemory
from tapml.runs.events import PhaseEnded, PhaseStarted
from tapml.session.final_run import FinalRun
from tapml.session.journal import HOST, REFERENCE
from tapml.session.operator_record import (
    MODEL_VALIDATION,
    OPERATOR_VALIDATION,
    OperatorRecord,
)
from tapml.session.report_data import build_report
from tapml.session.report_page import render_report
from tapml.session.selection import check_patterns
from tapml.session.settings import RunOptions
from tapml_targets.errors import TapmlError

PAGE: Final = "report.html"
DATA: Final = "report.json"


def migrate(context: MigrationContext, options: RunOptions) -> tuple[dict[str, Any], Path]:
    """Run Algorithm 1, then the finished plan, then write the report.

    The report is also written if the run fails or is interrupted.

    Returns
    -------
    tuple
        The report's data and the path of its page.

    Raises
    ------
    InputError
        If a pattern of the options matches no operator; the report stays unchanged.
    """
    plan = context.imported.plan
    check_patterns(plan, options)
    records = {name: OperatorRecord(operator) for name, operator in plan.operators.items()}
    final: FinalRun | None = None
    try:
        _move(context, options, records)
        if all(record.state in ("moved", "validated") for record in records.values()):
            final = _finish(context, records)
        if final is None or final.status != "pass":
            discard_finished(context.folder)
    except BaseException:
        # Report the original error, even if the report cannot be written either.
        with contextlib.suppress(TapmlError):
            write_report(context, records, final)
        raise
    return write_report(context, records, final)


def _move(
    context: MigrationContext, options: RunOptions, records: dict[str, OperatorRecord]
) -> None:
    target = context.settings.target
    context.watcher(PhaseStarted("move operators", total=len(records)))
    started = time.monotonic()
    with ReplayMemory(context.session, context.target.limits.memory_bytes) as memory:
        report = RefreshingReport(context.watcher, lambda: write_report(context, records, None))
        Algorithm(replace(context, watcher=report), options, memory, records).run()
    moved = sum(record.state == "moved" for record in records.values())
    detail = f"{moved} of {len(records)} on the target"
    context.watcher(PhaseEnded("move operators", time.monotonic() - started, detail))
    context.phases.record(
        "compile kernels",
        context.compiled.seconds,
        group="rooting",
        platform=HOST,
        once=False,
        detail="while other steps ran",
    )
    for name in (OPERATOR_VALIDATION, MODEL_VALIDATION):
        seconds = sum(record.seconds.get(name, 0.0) for record in records.values())
        detail = f"{seconds / max(len(records), 1):.3f} s an operator"
        context.phases.record(
            name, seconds, group="overhead", platform=target, once=False, detail=detail
        )


def _finish(context: MigrationContext, records: dict[str, OperatorRecord]) -> FinalRun:
    final = finish(context, records)
    context.journal.append("final", **final.to_json())
    if final.status == "pass":
        # Operators that did not fit into a hybrid run have now run with all the others.
        for record in records.values():
            record.state, record.reason = "moved", ""
    return final


def write_report(
    context: MigrationContext, records: dict[str, OperatorRecord], final: FinalRun | None
) -> tuple[dict[str, Any], Path]:
    """Write ``report.json`` and ``report.html`` into the session's folder."""
    plan, model = context.imported.plan, context.model
    report = build_report(
        plan=plan,
        model={
            "name": model.name,
            "dtype": model.dtype,
            "context_length": model.context_length,
            "weights_hash": model.weights_hash,
            "notes": list(context.notes),
        },
        reference=described(context.executor.reference) or REFERENCE,
        reference_device=reference_facts(context.executor.reference),
        device=context.session.device,
        fingerprint=context.fingerprint,
        self_test=context.self_test,
        policy=context.policy,
        records=list(records.values()),
        final=final,
        journal=context.journal,
        folder=context.folder,
    )
    write_json(context.folder / DATA, report)
    page = context.folder / PAGE
    write_text(page, render_report(report))
    return report, page
