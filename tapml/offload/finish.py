"""The end of a migration: the plan on the target alone (lines 14 and 15 of Algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tapml.compare.modelwise import LogitVerdict, compare_tokens, not_compared
from tapml.compare.verdict import Status
from tapml.compiler.link import link_entries
from tapml.durable.files import remove_file, write_bytes, write_json
from tapml.execute.generate import greedy
from tapml.execute.plan_runner import PlanRunner
from tapml.graph.plan_format import pack as pack_plan
from tapml.offload.device_room import DeviceRoom
from tapml.offload.finished_folder import FINISHED, LIBRARY, MODEL, PLAN
from tapml.offload.model_check import check_model
from tapml.offload.workbench import Workbench
from tapml_targets.library import Library
from tapml_targets.library_format import pack as pack_library


@dataclass(frozen=True)
class PromptResult:
    """What the target wrote for one prompt, and how it compares with the reference."""

    prompt: str
    text: str
    tokens: tuple[int, ...]
    verdict: str
    equal: bool


@dataclass(frozen=True)
class FinalRun:
    """The whole model on the target alone."""

    logits: LogitVerdict
    prompts: tuple[PromptResult, ...]

    @property
    def status(self) -> Status:
        """The model-wise verdict: free-running tokens are reported and decide nothing."""
        return self.logits.status

    @property
    def headline(self) -> str:
        """How it went, in half a line."""
        if self.status == "not run":
            return self.logits.reason
        equal = sum(each.equal for each in self.prompts)
        tokens = f"tokens equal the reference's for {equal} of {len(self.prompts)} prompts"
        return f"logits {self.logits.status}, {tokens}"

    @property
    def text(self) -> str:
        """The same with the numbers behind it."""
        if self.status == "not run":
            return self.headline
        return f"{self.headline}: {self.logits.reason}"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "status": self.status,
            "text": self.text,
            "logits": self.logits.to_json(),
            "prompts": [vars(each) | {"tokens": list(each.tokens)} for each in self.prompts],
        }


def run_on_target_alone(bench: Workbench, libraries: Mapping[str, Library]) -> FinalRun:
    """Link the plan into one Library, run it on the target and compare logits and tokens.

    A model that is larger than the device's memory is not run.
    """
    plan = bench.imported.plan
    library = link_entries(plan, libraries)
    lack = DeviceRoom(bench).lack_of_whole(library)
    if lack:
        return FinalRun(not_compared(lack), ())
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
        final = FinalRun(verdict, tuple(results))
        phase.detail = final.text
    if final.status == "pass":
        save_finished(bench, library)
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
