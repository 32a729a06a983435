"""StatisticsTracked: a model that is evaluated has statistics in its norms.

An averaged model gets trained weights, and its norms keep the statistics that they were made with
until data goes through them in training mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import FORWARD, UNTRACKED, Window
from tapml.invariants.relation import Example, Memory, Params, Relation


class StatisticsTracked(Relation):
    """Norms with trained weights in evaluation; new beside the paper's relations."""

    name = "StatisticsTracked"
    structural = True
    norms = True
    least = 1
    avoided = ("",)
    apis = ("api",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """One rule, if a model is evaluated."""
        if any(UNTRACKED in each.fields for window in windows for each in window.calls(FORWARD)):
            yield {"api": FORWARD}

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each evaluation after training has begun."""
        if window.step < 0:
            return
        for record in window.calls(params["api"]):
            count = record.fields.get(UNTRACKED)
            if isinstance(count, int):
                norms = "a norm" if count == 1 else f"{count} norms"
                found = f"{norms} of {record.fields['class']} saw no batch in training mode"
                yield Example(not count, (record,), FORWARD, found)

    def sentence(self, params: Params) -> str:
        """The rule."""
        return "In evaluation, norms with trained weights have statistics of batches."

    def concerns(self, params: Params) -> frozenset[str]:
        """The statistics."""
        return frozenset({"statistics of norms"})


RELATION = StatisticsTracked()
