"""TrainingMode: what an optimizer step uses comes from a model in training mode.

A loop that evaluates and does not switch back trains without dropout and with fixed statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import FORWARD, STEP, Window
from tapml.invariants.relation import Example, Memory, Params, Relation


class TrainingMode(Relation):
    """The forward calls of each step that trains; new beside the paper's relations."""

    name = "TrainingMode"
    structural = True
    avoided = ("arg.", "result", "module", "training", "stage")

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """One rule, if the run trains a model."""
        if any(window.calls(FORWARD) and window.calls(STEP) for window in windows):
            yield {}

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each step of each process; another model, such as a teacher, may be in evaluation."""
        for process in window.processes:
            if not any(record.name == STEP and record.done for record in process):
                continue
            calls = [record for record in process if record.name == FORWARD]
            followed = [each for each in calls if each.context.get("grad")]
            trained = {each.fields.get("class") for each in followed if each.context["training"]}
            before = memory.setdefault("trained", set())
            before |= trained
            if followed:
                # Not the teacher, which was never in training mode.
                forgot = [each for each in followed if each.fields.get("class") in before]
                call = (forgot or followed)[-1]
                found = f"{call.fields.get('class')} ran in evaluation mode"
                yield Example(bool(trained), (call,), FORWARD, found)

    def sentence(self, params: Params) -> str:
        """The rule."""
        return "In each training step, a model runs in training mode."

    def concerns(self, params: Params) -> frozenset[str]:
        """The mode."""
        return frozenset({"training mode"})


RELATION = TrainingMode()
