"""EvaluatedAfterTraining: a model is trained before it is evaluated for the first time.

Layers such as spectral norm get their state from forward calls in training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import BACKWARD, FORWARD, Record, Window
from tapml.invariants.relation import Example, Memory, Params, Relation


class EvaluatedAfterTraining(Relation):
    """The first forward call in evaluation of each process."""

    name = "EvaluatedAfterTraining"
    structural = True
    least = 1
    avoided = ("arg.", "result", "module", "training")

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """One rule, if the run evaluates."""
        if any(_evaluates(record) for window in windows for record in window.calls(FORWARD)):
            yield {}

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """The first evaluation of each process."""
        for record in window.records:
            if record.name == BACKWARD:
                memory.setdefault(record.rank, "trained")
            elif record.name == FORWARD and _evaluates(record):
                before = memory.get(record.rank)
                memory[record.rank] = "evaluated"
                if before != "evaluated":
                    found = "the model was evaluated before the first backward call"
                    yield Example(before == "trained", (record,), FORWARD, found)

    def sentence(self, params: Params) -> str:
        """The rule."""
        return "The model is trained before it is evaluated for the first time."

    def concerns(self, params: Params) -> frozenset[str]:
        """Evaluation."""
        return frozenset({"evaluation"})


def _evaluates(record: Record) -> bool:
    return record.fields.get("module.training") is False


RELATION = EvaluatedAfterTraining()
