"""The end of a migration: the complete plan on the target (lines 14 and 15 of Algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from tapml.compiler.link import link_entries
from tapml.durable.files import remove_file, write_bytes, write_json
from tapml.execute.plan_runner import PlanRunner
from tapml.offload.context import MigrationContext
from tapml.offload.device_room import DeviceRoom
from tapml.offload.error_growth import record_error_growth
from tapml.plan.format import pack as pack_plan
from tapml.plan.format import plan_hash
from tapml.runs.events import Note
from tapml.session.final_run import FinalRun
from tapml.session.folder import FINISHED, LIBRARY, MODEL, PLAN
from tapml.session.keys import model_key
from tapml.session.operator_record import OperatorRecord
from tapml.verdicts.modelwise import not_compared
from tapml_targets.library import Library
from tapml_targets.library_format import library_hash
from tapml_targets.library_format import pack as pack_library

FINAL: Final = "final"
"""Stage of the verdict on the complete model on the target."""

_HASH: Final = "library_hash"
_PLAN: Final = "plan_hash"
_NEED: Final = "device_bytes"


def finish(context: MigrationContext, records: Mapping[str, OperatorRecord]) -> FinalRun:
    """Run the complete model on the target, or reuse the journal's result if nothing changed.

    Parameters
    ----------
    context
        The open session.
    records
        Every operator of the plan; all pass their own tests.

    Returns
    -------
    FinalRun
        ``not run`` if the model does not fit the device.
    """
    kernels = {name: record.kernel for name, record in records.items()}
    device, reference = context.session.device, context.reference_identity
    key = model_key(kernels, context.trace.key, device, FINAL, reference)
    known = context.journal.result(key)
    if known is not None and known.status == "pass" and _is_current(context, known.data):
        context.watcher(Note("the complete model on the target: reused from the journal"))
        return FinalRun.reused(known.data)
    libraries = {
        name: record.library for name, record in records.items() if record.library is not None
    }
    plan = context.imported.plan
    library = link_entries(plan, libraries)
    final = _whole(context, library)
    kept = {
        _HASH: library_hash(pack_library(library)),
        _PLAN: plan_hash(plan),
        _NEED: DeviceRoom(context).required_bytes(library),
    }
    if final.status == "pass":
        save_finished(context, library)
    if final.status != "not run":
        record_error_growth(context, libraries)
    # Last, so that a verdict in the journal implies a Library in the folder.
    context.journal.record(key, FINAL, context.model.name, final.status, final.to_json() | kept)
    return final


def _whole(context: MigrationContext, library: Library) -> FinalRun:
    lack = DeviceRoom(context).memory_shortfall(library)
    return FinalRun.of(not_compared(lack), ()) if lack else _run_on_target(context, library)


def _is_current(context: MigrationContext, data: Mapping[str, Any]) -> bool:
    """Whether the files that passed are still in the folder, and still fit the device."""
    folder, limit = context.folder / FINISHED, context.target.limits.memory_bytes
    try:
        whole = library_hash((folder / LIBRARY).read_bytes()) == data[_HASH]
        fits = not limit or int(data[_NEED]) <= limit
        same = plan_hash(context.imported.plan) == data[_PLAN]
    except (OSError, KeyError, TypeError, ValueError):
        return False
    return whole and fits and same and (folder / PLAN).is_file() and (folder / MODEL).is_file()


def _run_on_target(context: MigrationContext, library: Library) -> FinalRun:
    plan = context.imported.plan
    target = context.settings.target
    with ExitStack() as stack:
        with context.phases.phase(
            "load weights", group="rooting", platform=target, once=False
        ) as phase:
            runner = stack.enter_context(
                PlanRunner(plan, context.imported.weights, library, context.session)
            )
            context.session.fence()
            nbytes = sum(weight.nbytes for weight in context.imported.weights.values())
            phase.detail = f"{nbytes / 1e6:.1f} MB"
        phase = stack.enter_context(
            context.phases.phase(
                "end-to-end validation", group="rooting", platform=target, once=False
            )
        )
        workload, trace = context.workload, context.trace
        verdict = workload.check_model(runner, trace)
        results = [workload.result(runner, each, partial(_text, context)) for each in trace.cases]
        final = FinalRun.of(
            verdict,
            results,
            subject=workload.subject,
            agreement=workload.agreement(results),
            argument=""
            if workload.generates
            else workload.argument(takes_text=context.codec is not None),
        )
        phase.detail = final.text
    return final


def save_finished(context: MigrationContext, library: Library) -> None:
    """Write plan and Library for ``tapml run``; the weights are stored with the model."""
    folder = context.folder / FINISHED
    folder.mkdir(exist_ok=True)
    discard_finished(context.folder)
    write_bytes(folder / PLAN, pack_plan(context.imported.plan))
    model = context.model
    write_json(
        folder / MODEL,
        {
            "dtype": model.dtype,
            "context_length": model.context_length,
            "weights_hash": model.weights_hash,
            "device": f"{context.session.device.platform}:{context.session.device.index}",
        },
    )
    # Last, so that a folder with a Library is complete.
    write_bytes(folder / LIBRARY, pack_library(library))


def discard_finished(folder: Path) -> None:
    """Remove the outdated Library that an earlier run of the session saved."""
    remove_file(folder / FINISHED / LIBRARY)


def _text(context: MigrationContext, tokens: Sequence[int]) -> str:
    codec = context.codec
    return codec.decode(tokens) if codec is not None else " ".join(map(str, tokens))
