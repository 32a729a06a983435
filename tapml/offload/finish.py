"""The end of a migration: the plan on the target alone (lines 14 and 15 of Algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from tapml.compare.modelwise import compare_tokens, not_compared
from tapml.compiler.link import link_entries
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
from tapml.offload.workbench import Workbench
from tapml_targets.library import Library
from tapml_targets.library_format import library_hash
from tapml_targets.library_format import pack as pack_library

FINAL: Final = "final"
"""Stage of the verdict on the whole model on the target alone."""


_HASH: Final = "library_hash"
_PLAN: Final = "plan_hash"
_NEED: Final = "device_bytes"


def finish(bench: Workbench, records: Mapping[str, OperatorRecord]) -> FinalRun:
    """The whole model on the target: as the journal has it where nothing changed, else run.

    Parameters
    ----------
    bench
        The open session.
    records
        Every operator of the plan; all pass their own tests.

    Returns
    -------
    FinalRun
        ``not run`` where the model does not fit the device.
    """
    kernels = {name: record.kernel for name, record in records.items()}
    key = model_key(kernels, bench.trace.key, bench.session.device, FINAL)
    known = bench.journal.verdict(key)
    if known is not None and known.status == "pass" and _stands(bench, known.data):
        bench.watcher(Note("the whole model on the target: as the journal has it"))
        return FinalRun.reused(known.data)
    libraries = {
        name: record.library for name, record in records.items() if record.library is not None
    }
    library = link_entries(bench.imported.plan, libraries)
    room = DeviceRoom(bench)
    lack = room.lack_of_whole(library)
    final = FinalRun.of(not_compared(lack), ()) if lack else _run_on_target_alone(bench, library)
    kept = {
        _HASH: library_hash(pack_library(library)),
        _PLAN: plan_hash(bench.imported.plan),
        _NEED: room.need_of_whole(library),
    }
    if final.status == "pass":
        save_finished(bench, library)
    # Last: a verdict in the journal finds its Library in the folder.
    bench.journal.record(key, FINAL, bench.model.name, final.status, final.to_json() | kept)
    return final


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
