"""UsedInEveryRun: a program that trains under autocast, or loads weights, does so in every run.

As :mod:`~tapml.invariants.relations.evaluated`, it is about whole runs of the program learned from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from tapml.invariants.record import FORWARD, Record, Window
from tapml.invariants.relation import Example, Memory, Params, Relation

_LOAD: Final = "torch.nn.Module.load_state_dict"
_SAID: Final = {
    "autocast": ("trains under autocast", "no forward call in training was under autocast"),
    "load": ("loads weights once training has begun", "no weights were loaded during training"),
}


class UsedInEveryRun(Relation):
    """Features of a run that no single call shows; new beside the paper's relations."""

    name = "UsedInEveryRun"
    structural = True
    least = 1
    avoided = ("",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """Each feature that the run has."""
        return [
            {"feature": feature}
            for feature in _SAID
            if any(True for window in windows for _ in _uses(window, feature))
        ]

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each use."""
        for record in _uses(window, params["feature"]):
            yield Example(True, (record,), record.name, "")

    def sentence(self, params: Params) -> str:
        """The feature."""
        return f"The program {_SAID[params['feature']][0]}."

    def concerns(self, params: Params) -> frozenset[str]:
        """The feature."""
        return frozenset({f"use of {params['feature']}"})

    def missing(self, params: Params, called: Mapping[str, Record]) -> tuple[str, str] | None:
        """A run of the program without it."""
        return (FORWARD, _SAID[params["feature"]][1]) if FORWARD in called else None


def _uses(window: Window, feature: str) -> Iterator[Record]:
    if feature == "load":
        yield from (each for each in window.calls(_LOAD) if each.step >= 0)
        return
    for record in window.calls(FORWARD):
        if record.context.get("autocast") and record.fields.get("module.training"):
            yield record


RELATION = UsedInEveryRun()
