"""TargetsChange: where the model's input differs from the step before, so does its target.

As noise that a diffusion model is to find: drawn once, it is learned by heart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import TARGET, Window
from tapml.invariants.relation import Example, Memory, Params, Relation, short_name


class TargetsChange(Relation):
    """Targets of numbers with fractions; new beside the paper's relations."""

    name = "TargetsChange"
    structural = True
    fresh = targets = True
    least = 3
    avoided = ("",)
    apis = ("api",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """Losses whose target differs."""
        found = {
            record.name
            for window in windows
            for records in window.by_name.values()
            for record in records
            if record.fields.get(TARGET)
        }
        return [{"api": name} for name in sorted(found)]

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """The first call in each step in which the model got another input."""
        for record in window.calls(params["api"]):
            changed = record.fields.get(TARGET)
            if changed is not None:
                found = "the input of the model differs from the step before, the target does not"
                yield Example(bool(changed), (record,), record.name, found)

    def sentence(self, params: Params) -> str:
        """The loss."""
        return f"The target of {short_name(params['api'])} changes with the model's input."

    def concerns(self, params: Params) -> frozenset[str]:
        """The target."""
        return frozenset({"targets"})


RELATION = TargetsChange()
