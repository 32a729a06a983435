"""ScheduledOptimizer: a learning rate schedule moves an optimizer that steps.

As when the optimizer is made again for a new model, and the schedule keeps the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import SCHEDULE, SCHEDULED, Window
from tapml.invariants.relation import Example, Memory, Params, Relation


class ScheduledOptimizer(Relation):
    """The optimizer of each schedule; new beside the paper's relations."""

    name = "ScheduledOptimizer"
    structural = True
    avoided = ("",)
    apis = ("api",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """One rule, if a schedule moves."""
        if any(SCHEDULED in each.fields for window in windows for each in window.calls(SCHEDULE)):
            yield {"api": SCHEDULE}

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each move while another optimizer has stepped."""
        for record in window.calls(params["api"]):
            steps = record.fields.get(SCHEDULED)
            if steps is not None:
                found = "the optimizer of a schedule never steps, and another one does"
                yield Example(bool(steps), (record,), record.name, found)

    def sentence(self, params: Params) -> str:
        """The rule."""
        return "A learning rate schedule moves an optimizer that steps."

    def concerns(self, params: Params) -> frozenset[str]:
        """The schedule."""
        return frozenset({"optimizer of a schedule"})


RELATION = ScheduledOptimizer()
