"""PlannedSteps: a run makes as many optimizer steps as ``set_meta(planned_steps=...)`` said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import PLANNED_STEPS, STEP, Record, Window
from tapml.invariants.relation import Example, Memory, Params, Relation


class PlannedSteps(Relation):
    """The plan against what was executed; new beside the paper's relations."""

    name = "PlannedSteps"
    structural = True
    least = 1

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """One rule, if the run had a plan."""
        if any(PLANNED_STEPS in record.context for window in windows for record in window.records):
            yield {}

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """The end of each process."""
        spans: dict[tuple[int, object], tuple[Record, Record]] = memory.setdefault("spans", {})
        for place, process in enumerate(window.processes):
            for record in process:
                if record.name == STEP and record.done:
                    key = (place, record.fields.get("optimizer"))
                    first, _ = spans.get(key, (record, record))
                    spans[key] = (first, record)
        if not window.last:
            return
        # Of optimizers that take turns, all but one make their steps in the next of the run's.
        most: dict[int, tuple[int, Record]] = {}
        for (place, _), (first, last) in spans.items():
            found = (last.step - first.step + 1, last)
            most[place] = max(most.get(place, found), found, key=lambda each: each[0])
        for made, last in most.values():
            planned = last.context.get(PLANNED_STEPS)
            if isinstance(planned, int):
                said = f"{made} steps were made, {planned} were planned"
                yield Example(made == planned, (last,), STEP, said)

    def sentence(self, params: Params) -> str:
        """The rule."""
        return "The run makes as many optimizer steps as it planned."

    def concerns(self, params: Params) -> frozenset[str]:
        """The plan."""
        return frozenset({"planned steps"})


RELATION = PlannedSteps()
