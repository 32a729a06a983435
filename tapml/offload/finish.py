"""The end of a migration: the plan on the target alone (lines 14 and 15 of Algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tapml.carving.lost import rephrased
from tapml.compare.modelwise import compare_tokens, not_compared
from tapml.compiler.link import link_entries
from tapml.compiler.merged_launches import MERGING_VERSION, launch_counts
from tapml.durable.files import remove_file, write_bytes, write_json
from tapml.execute.generate import greedy
from tapml.execute.plan_runner import PlanRunner
from tapml.graph.plan_format import pack as pack_plan
from tapml.graph.plan_format import plan_hash
from tapml.offload.device_room import DeviceRoom
from tapml.offload.events import Note
from tapml.offload.final_run import FinalRun, PromptResult
from tapml.offload.finished_folder import FINISHED, LIBRARY, MODEL, PLAN
from tapml.offload.keys import model_key
from tapml.offload.model_check import check_model
from tapml.offload.operator_record import OperatorRecord
from tapml.offload.verdict_key import VerdictKey
from tapml.offload.workbench import Workbench
from tapml_targets.errors import CompileError, DeviceLostError
from tapml_targets.library import Library
from tapml_targets.library_format import library_hash
from tapml_targets.library_format import pack as pack_library

FINAL: Final = "final"
"""Stage of the verdict on the whole model on the target alone."""

MERGED: Final = "merged launches"
"""Stage of a verdict on merged launches that the device did not survive."""

_HASH: Final = "library_hash"
_PLAN: Final = "plan_hash"
_NEED: Final = "device_bytes"


def finish(
    bench: Workbench, records: Mapping[str, OperatorRecord], *, merge: bool = True
) -> FinalRun:
    """The whole model on the target: as the journal has it where nothing changed, else run.

    Parameters
    ----------
    bench
        The open session.
    records
        Every operator of the plan; all pass their own tests.
    merge
        Whether launches that are independent of each other become one. The model is run so, and
        only what passes is kept; where it does not, it is run with its launches apart.

    Returns
    -------
    FinalRun
        ``not run`` where the model does not fit the device.
    """
    kernels = {name: record.kernel for name, record in records.items()}
    stage = f"{FINAL}, {MERGED} {MERGING_VERSION}" if merge else FINAL
    key = model_key(kernels, bench.trace.key, bench.session.device, stage)
    known = bench.journal.verdict(key)
    if known is not None and known.status == "pass" and _stands(bench, known.data):
        bench.watcher(Note("the whole model on the target: as the journal has it"))
        return FinalRun.reused(known.data)
    libraries = {
        name: record.library for name, record in records.items() if record.library is not None
    }
    plan = bench.imported.plan
    library = link_entries(plan, libraries)
    final = None
    # A device that was lost over merged launches is not given them again.
    if merge and known is not None and known.stage == MERGED:
        bench.watcher(Note("launches stay apart, the device was lost over merged ones before"))
    elif merge:
        merged = link_entries(plan, libraries, merge=True)
        final = _with_merged_launches(bench, library, merged, key)
        library = library if final is None else merged
    final = final or _whole(bench, library)
    kept = {
        _HASH: library_hash(pack_library(library)),
        _PLAN: plan_hash(plan),
        _NEED: DeviceRoom(bench).need_of_whole(library),
    }
    if final.status == "pass":
        save_finished(bench, library)
    # Last: a verdict in the journal finds its Library in the folder.
    bench.journal.record(key, FINAL, bench.model.name, final.status, final.to_json() | kept)
    return final


def _with_merged_launches(
    bench: Workbench, library: Library, merged: Library, key: VerdictKey
) -> FinalRun | None:
    """The run of a Library with merged launches; None where it shall be run as it was."""
    before, after = launch_counts(library), launch_counts(merged)
    if before == after:
        return None
    try:
        final = _whole(bench, merged)
    except CompileError as error:
        bench.watcher(Note(f"launches stay apart, the device does not build them merged: {error}"))
        return None
    except DeviceLostError as error:
        during = "while the whole model was tried with independent launches merged: "
        if type(error) is DeviceLostError and bench.elsewhere:
            # The way to it ended, which says nothing about the launches.
            raise rephrased(error, before=during) from error
        bench.journal.record(key, MERGED, bench.model.name, "fail", {"reason": str(error)})
        raise rephrased(error, before=during, after="; they stay apart from now on") from error
    if final.status != "pass":
        bench.watcher(Note(f"launches stay apart, the model with merged ones: {final.text}"))
        return None
    counts = {name: [before[name], after[name]] for name in before}
    shown = ", ".join(f"{of} of {name} are {to}" for name, (of, to) in counts.items())
    bench.watcher(Note(f"independent launches merged: {shown}"))
    return replace(final, data=final.to_json() | {"launches": counts})


def _whole(bench: Workbench, library: Library) -> FinalRun:
    lack = DeviceRoom(bench).lack_of_whole(library)
    return FinalRun.of(not_compared(lack), ()) if lack else _run_on_target_alone(bench, library)


def _stands(bench: Workbench, data: Mapping[str, Any]) -> bool:
    """Whether what passed still lies in the folder, and still fits the device."""
    folder, limit = bench.folder / FINISHED, bench.target.limits.memory_bytes
    try:
        whole = library_hash((folder / LIBRARY).read_bytes()) == data[_HASH]
        fits = not limit or int(data[_NEED]) <= limit
        same = plan_hash(bench.imported.plan) == data[_PLAN]
    except (OSError, KeyError, TypeError, ValueError):
        return False
    return whole and fits and same and (folder / PLAN).is_file() and (folder / MODEL).is_file()


def _run_on_target_alone(bench: Workbench, library: Library) -> FinalRun:
    """Run the linked plan on the target and compare logits and tokens."""
    plan = bench.imported.plan
    target = bench.settings.target
    with ExitStack() as stack:
        with bench.phases.phase(
            "load weights", group="rooting", platform=target, once=False
        ) as phase:
            runner = stack.enter_context(
                PlanRunner(plan, bench.imported.weights, library, bench.session)
            )
            bench.session.fence()
            nbytes = sum(weight.nbytes for weight in bench.imported.weights.values())
            phase.detail = f"{nbytes / 1e6:.1f} MB"
        phase = stack.enter_context(
            bench.phases.phase(
                "end-to-end validation", group="rooting", platform=target, once=False
            )
        )
        verdict = check_model(bench.model, runner, bench.trace)
        results = []
        for trace in bench.trace.prompts:
            ids = trace.prompt.token_ids
            count = len(trace.tokens)
            tokens = tuple(
                step.token for step in greedy(bench.model, runner, ids, count, stop_at_end=False)
            )
            start = len(ids) - 1
            comparison = compare_tokens(trace.tokens, tokens, trace.logits[start : start + count])
            results.append(
                PromptResult(
                    prompt=_text(bench, ids),
                    text=_text(bench, tokens),
                    tokens=tokens,
                    verdict=comparison.text,
                    equal=comparison.first_parting is None,
                )
            )
        final = FinalRun.of(verdict, results)
        phase.detail = final.text
    return final


def save_finished(bench: Workbench, library: Library) -> None:
    """Write plan and Library for ``tapml run``; the weights are kept with the model."""
    folder = bench.folder / FINISHED
    folder.mkdir(exist_ok=True)
    discard_finished(bench.folder)
    write_bytes(folder / PLAN, pack_plan(bench.imported.plan))
    model = bench.model
    write_json(
        folder / MODEL,
        {
            "dtype": model.dtype,
            "context_length": model.context_length,
            "weights_hash": model.weights_hash,
            "device": f"{bench.session.device.platform}:{bench.session.device.index}",
        },
    )
    # Last: a folder with a Library is whole.
    write_bytes(folder / LIBRARY, pack_library(library))


def discard_finished(folder: Path) -> None:
    """Take back what an earlier run of the session saved: it no longer stands for the session."""
    remove_file(folder / FINISHED / LIBRARY)


def _text(bench: Workbench, tokens: tuple[int, ...]) -> str:
    codec = bench.codec
    return codec.decode(tokens) if codec is not None else " ".join(map(str, tokens))
