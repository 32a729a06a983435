"""BestSaved: a program that keeps the weights of its best evaluation does so in every run.

As :mod:`~tapml.invariants.relations.evaluated`, it is about whole runs of the program learned from.
It is learned where a run went on after its best evaluation, and saved the weights of that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tapml.invariants.record import BEST, OVER, SAVE, SCORE, Record, Window
from tapml.invariants.relation import Example, Memory, Params, Relation


class BestSaved(Relation):
    """Checkpoints beside losses of evaluations; new beside the paper's relations."""

    name = "BestSaved"
    structural = True
    scores = True
    least = 1
    avoided = ("",)
    apis = ("api", "loss")

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """One rule, if the best was not the last, and was saved."""
        for record in (each for window in windows for each in window.calls(SAVE)):
            if record.fields.get(BEST) and record.fields.get(OVER):
                yield {"api": SAVE, "loss": str(record.fields[SCORE])}
                return

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each checkpoint of the best weights so far."""
        for record in window.calls(params["api"]):
            if record.fields.get(BEST):
                yield Example(True, (record,), SAVE, "")

    def sentence(self, params: Params) -> str:
        """The rule."""
        return "A checkpoint has the weights of the best evaluation."

    def concerns(self, params: Params) -> frozenset[str]:
        """Checkpoints."""
        return frozenset({"checkpoints"})

    def missing(
        self, params: Params, called: Mapping[str, Record], steps: int
    ) -> tuple[str, str] | None:
        """A run of the program that saves others."""
        if SAVE not in called:
            return None
        return SAVE, "no checkpoint has the weights of the evaluation with the lowest loss"


RELATION = BestSaved()
