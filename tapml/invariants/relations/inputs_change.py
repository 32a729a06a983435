"""InputsChange: a program that gives its model other data from step to step does so in every run.

As :mod:`~tapml.invariants.relations.evaluated`, it is about whole runs of the program learned from:
others train on one batch on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tapml.invariants.record import CHANGED, FORWARD, Record, Window
from tapml.invariants.relation import Example, Memory, Params, Relation


class InputsChange(Relation):
    """The first input of a model in each step; new beside the paper's relations."""

    name = "InputsChange"
    structural = True
    fresh = True
    least = 1
    avoided = ("",)
    apis = ("api",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """One rule, if an input differs."""
        calls = [record for window in windows for record in window.calls(FORWARD)]
        if any(record.fields.get(CHANGED) for record in calls):
            yield {"api": FORWARD}

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each other input."""
        for record in window.calls(params["api"]):
            if record.fields.get(CHANGED):
                yield Example(True, (record,), FORWARD, "")

    def sentence(self, params: Params) -> str:
        """The rule."""
        return "The data that the model trains on differ from step to step."

    def concerns(self, params: Params) -> frozenset[str]:
        """The inputs."""
        return frozenset({"inputs of a model"})

    def missing(
        self, params: Params, called: Mapping[str, Record], steps: int
    ) -> tuple[str, str] | None:
        """A run of the program on one batch."""
        if FORWARD not in called:
            return None
        return FORWARD, "the model got the same input in every step"


RELATION = InputsChange()
