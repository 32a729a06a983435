"""WeightsSaved: a checkpoint has the weights that a model of the run has then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import CURRENT, SAVE, Window
from tapml.invariants.relation import Example, Memory, Params, Relation


class WeightsSaved(Relation):
    """The values in a checkpoint; new beside the paper's relations."""

    name = "WeightsSaved"
    structural = True
    saved = True
    own = True
    least = 1
    avoided = ("",)
    apis = ("api",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """One rule, if a checkpoint has weights of a model."""
        if any(each.fields.get(CURRENT) for window in windows for each in window.calls(SAVE)):
            yield {"api": SAVE}

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each checkpoint."""
        for record in window.calls(params["api"]):
            if CURRENT in record.fields:
                found = "its weights are those of no model that ran"
                yield Example(bool(record.fields[CURRENT]), (record,), SAVE, found)

    def sentence(self, params: Params) -> str:
        """The rule."""
        return "A checkpoint has the weights that a model has when it is saved."

    def concerns(self, params: Params) -> frozenset[str]:
        """Saving."""
        return frozenset({SAVE})


RELATION = WeightsSaved()
