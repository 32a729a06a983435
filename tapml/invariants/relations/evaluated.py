"""Evaluated: a program that evaluates its model in evaluation mode does so in every run.

A single call says nothing: target networks and actors also run without gradients, in training mode.
So the rule is about a whole run, of the program that was learned from, which never evaluates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from tapml.invariants.record import FORWARD, Record, Window
from tapml.invariants.relation import Example, Memory, Params, Relation

_PYTORCH: Final = "torch.nn."


class Evaluated(Relation):
    """A model of a class of the program's own runs in evaluation mode."""

    name = "Evaluated"
    structural = True
    least = 1
    avoided = ("arg.", "result", "module", "training")

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """One rule for each class; those of PyTorch itself may be any program's."""
        calls = [record for window in windows for record in window.calls(FORWARD)]
        found = {str(each.fields.get("class")) for each in calls if _evaluates(each)}
        apis = {api for window in windows for api in window.by_name if api.startswith(_PYTORCH)}
        own = found - {api.split(".")[-2] for api in apis}
        return [{"class": name} for name in sorted(own)]

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each forward call in evaluation mode."""
        for record in window.calls(FORWARD):
            if record.fields.get("class") == params["class"] and _evaluates(record):
                yield Example(True, (record,), FORWARD, "")

    def sentence(self, params: Params) -> str:
        """The rule."""
        return f"{params['class']} is evaluated in evaluation mode."

    def concerns(self, params: Params) -> frozenset[str]:
        """Evaluation."""
        return frozenset({"evaluation"})

    def missing(
        self, params: Params, called: Mapping[str, Record], steps: int
    ) -> tuple[str, str] | None:
        """A run of the program that never evaluates."""
        call = f"{FORWARD} {params['class']}"
        if call not in called:
            return None
        return call, f"{params['class']} never ran in evaluation mode"


def _evaluates(record: Record) -> bool:
    return record.fields.get("module.training") is False


RELATION = Evaluated()
