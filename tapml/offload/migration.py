"""One run of a session from its open workbench to its report."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tapml.carving.replay_memory import ReplayMemory
from tapml.durable.files import write_json, write_text
from tapml.offload.algorithm import Algorithm
from tapml.offload.events import PhaseEnded, PhaseStarted
from tapml.offload.final_run import FinalRun
from tapml.offload.finish import discard_finished, finish
from tapml.offload.operator_record import (
    MODEL_VALIDATION,
    OPERATOR_VALIDATION,
    OperatorRecord,
)
from tapml.offload.phases import HOST, REFERENCE
from tapml.offload.report_refresh import RefreshingReport
from tapml.offload.selection import check_patterns
from tapml.offload.settings import RunOptions
from tapml.offload.workbench import Workbench
from tapml.report.data import build_report
from tapml.report.html import render
from tapml_targets.errors import TapmlError

PAGE: Final = "report.html"
DATA: Final = "report.json"


def migrate(bench: Workbench, options: RunOptions) -> tuple[dict[str, Any], Path]:
    """Run Algorithm 1, then the finished plan, then write the report.

    The report is written whatever comes of it, an interruption included.

    Returns
    -------
    tuple
        The report's data and the path of its page.

    Raises
    ------
    InputError
        If a pattern of the options matches no operator; the report stays as it is.
    """
    plan = bench.imported.plan
    check_patterns(plan, options)
    records = {name: OperatorRecord(operator) for name, operator in plan.operators.items()}
    final: FinalRun | None = None
    try:
        _move(bench, options, records)
        if all(record.state in ("moved", "validated") for record in records.values()):
            final = _finish(bench, options, records)
        if final is None or final.status != "pass":
            discard_finished(bench.folder)
    except BaseException:
        # What ended the run is what is told, not that its report could not be written either.
        with contextlib.suppress(TapmlError):
            write_report(bench, records, final)
        raise
    return write_report(bench, records, final)


def _move(bench: Workbench, options: RunOptions, records: dict[str, OperatorRecord]) -> None:
    target = bench.settings.target
    bench.watcher(PhaseStarted("move operators", total=len(records)))
    started = time.monotonic()
    with ReplayMemory(bench.session, bench.target.limits.memory_bytes) as memory:
        report = RefreshingReport(bench.watcher, lambda: write_report(bench, records, None))
        Algorithm(replace(bench, watcher=report), options, memory, records).run()
    moved = sum(record.state == "moved" for record in records.values())
    detail = f"{moved} of {len(records)} on the target"
    bench.watcher(PhaseEnded("move operators", time.monotonic() - started, detail))
    bench.phases.record(
        "compile kernels",
        bench.compiled.seconds,
        group="rooting",
        platform=HOST,
        once=False,
        detail="while other steps ran",
    )
    for name in (OPERATOR_VALIDATION, MODEL_VALIDATION):
        seconds = sum(record.seconds.get(name, 0.0) for record in records.values())
        detail = f"{seconds / max(len(records), 1):.3f} s an operator"
        bench.phases.record(
            name, seconds, group="overhead", platform=target, once=False, detail=detail
        )


def _finish(bench: Workbench, options: RunOptions, records: dict[str, OperatorRecord]) -> FinalRun:
    final = finish(bench, records, merge=options.merge)
    bench.journal.append("final", **final.to_json())
    if final.status == "pass":
        # What did not fit beside the source's part of a hybrid run has run with all the others.
        for record in records.values():
            record.state, record.reason = "moved", ""
    return final


def write_report(
    bench: Workbench, records: dict[str, OperatorRecord], final: FinalRun | None
) -> tuple[dict[str, Any], Path]:
    """Write ``report.json`` and ``report.html`` into the session's folder."""
    plan, model = bench.imported.plan, bench.model
    report = build_report(
        plan=plan,
        model={
            "name": model.name,
            "dtype": model.dtype,
            "context_length": model.context_length,
            "weights_hash": model.weights_hash,
            "notes": list(bench.notes),
        },
        reference=REFERENCE,
        device=bench.session.device,
        fingerprint=bench.fingerprint,
        self_test=bench.self_test,
        policy=bench.policy,
        records=list(records.values()),
        final=final,
        journal=bench.journal,
        folder=bench.folder,
    )
    write_json(bench.folder / DATA, report)
    page = bench.folder / PAGE
    write_text(page, render(report))
    return report, page
