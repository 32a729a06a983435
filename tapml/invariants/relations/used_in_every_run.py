"""UsedInEveryRun: what a program does somewhere, such as training under autocast, each run does.

As :mod:`~tapml.invariants.relations.evaluated`, it is about whole runs of the program learned from.
Weights are loaded between steps. A run that ends before the other runs loaded theirs is not judged.
What is loaded after the last step, as by early stopping, depends on the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from tapml.invariants.record import FORWARD, LOAD, LOAD_SCHEDULE, STEP, Record, Window
from tapml.invariants.relation import Example, Memory, Params, Relation

_SAID: Final = {
    "autocast": ("trains under autocast", "no forward call in training was under autocast"),
    "no_grad": (
        "runs a model in training mode without gradients",
        "no model ran in training mode without gradients",
    ),
    "load": ("loads weights between steps", "no weights were loaded between steps"),
    "schedule": (
        "loads the state of a schedule between steps",
        "no state of a schedule was loaded between steps",
    ),
}
_LOADS: Final = {"load": LOAD, "schedule": LOAD_SCHEDULE}


class UsedInEveryRun(Relation):
    """Features of a run that no single call shows; new beside the paper's relations."""

    name = "UsedInEveryRun"
    structural = True
    least = 1
    avoided = ("",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """Each feature that the run has; of loads, the step before which the first one is."""
        for feature in _SAID:
            first = next((each for window in windows for each in _uses(window, feature)), None)
            if first is not None:
                by = {"by": str(first.step)} if feature in _LOADS else {}
                yield {"feature": feature, **by}

    def widest(self, found: Sequence[Params]) -> Sequence[Params]:
        """Of each kind of loads, the run that makes it last."""
        last: dict[str, Params] = {}
        for each in sorted(found, key=lambda each: int(each.get("by", "-1"))):
            last[each["feature"]] = each
        return [each for each in found if each is last[each["feature"]]]

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each use."""
        for record in _uses(window, params["feature"]):
            yield Example(True, (record,), record.name, "")

    def sentence(self, params: Params) -> str:
        """The feature."""
        longer = f" in runs of more than {params['by']} steps" if "by" in params else ""
        return f"The program {_SAID[params['feature']][0]}{longer}."

    def concerns(self, params: Params) -> frozenset[str]:
        """The feature."""
        return frozenset({f"use of {params['feature']}"})

    def missing(
        self, params: Params, called: Mapping[str, Record], steps: int
    ) -> tuple[str, str] | None:
        """A run of the program without it."""
        if FORWARD not in called or steps <= int(params.get("by", "-1")):
            return None
        return FORWARD, _SAID[params["feature"]][1]


def _uses(window: Window, feature: str) -> Iterator[Record]:
    if feature in _LOADS:
        last = {step.rank: step.id for step in window.calls(STEP)}
        for record in window.calls(_LOADS[feature]):
            if record.step >= 0 and record.id < last.get(record.rank, -1):
                yield record
        return
    for record in window.calls(FORWARD):
        cast, grad = record.context.get("autocast"), record.context.get("grad")
        # Targets, teachers, and norms that are given statistics.
        if record.fields.get("module.training") and (cast if feature == "autocast" else not grad):
            yield record


RELATION = UsedInEveryRun()
