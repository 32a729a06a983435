"""ScheduledOptimizer: a learning rate schedule moves an optimizer that steps.

As when the optimizer is made again for a new model, and the schedule keeps the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tapml.invariants.record import SCHEDULE, SCHEDULE_PLACE, SCHEDULED, Record, Window
from tapml.invariants.relation import Example, Memory, Params, Relation


class ScheduledOptimizer(Relation):
    """The optimizer of each schedule; new beside the paper's relations."""

    name = "ScheduledOptimizer"
    structural = True
    avoided = ("",)
    apis = ("api",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """One rule, if a schedule moves; of several optimizers, each has its own."""
        moves = [each for window in windows for each in window.calls(SCHEDULE)]
        if any(SCHEDULED in each.fields for each in moves):
            yield {"api": SCHEDULE}
        places = {
            str(each.fields[SCHEDULE_PLACE]) for each in moves if SCHEDULE_PLACE in each.fields
        }
        for place in sorted(places) if len(places) > 1 else ():
            yield {"api": SCHEDULE, "optimizer": place}

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each move while another optimizer has stepped, or each of one optimizer's schedule."""
        for record in window.calls(params["api"]):
            if "optimizer" in params:
                if str(record.fields.get(SCHEDULE_PLACE)) == params["optimizer"]:
                    yield Example(True, (record,), record.name, "")
                continue
            steps = record.fields.get(SCHEDULED)
            if steps is not None:
                found = "the optimizer of a schedule never steps, and another one does"
                yield Example(bool(steps), (record,), record.name, found)

    def sentence(self, params: Params) -> str:
        """The rule."""
        if "optimizer" in params:
            return f"A learning rate schedule moves optimizer {params['optimizer']}."
        return "A learning rate schedule moves an optimizer that steps."

    def missing(
        self, params: Params, called: Mapping[str, Record], steps: int
    ) -> tuple[str, str] | None:
        """A run in which one of several schedules never moves."""
        if "optimizer" not in params or SCHEDULE not in called:
            return None
        return SCHEDULE, f"no schedule moves optimizer {params['optimizer']}"

    def concerns(self, params: Params) -> frozenset[str]:
        """The schedule."""
        return frozenset({"optimizer of a schedule"})


RELATION = ScheduledOptimizer()
