"""WeightsSaved: a checkpoint has the weights that a model of the run has then.

Those of the best evaluation, which a program kept in memory, are right as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import BEST, CURRENT, SAVE, Window
from tapml.invariants.relation import Example, Memory, Params, Relation


class WeightsSaved(Relation):
    """The values in a checkpoint; new beside the paper's relations."""

    name = "WeightsSaved"
    structural = True
    saved = True
    scores = True
    own = True
    least = 1
    avoided = ("",)
    apis = ("api",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """One rule, if checkpoints of two steps have weights of a model.

        One alone, in the end, may be of the best step, which happened to be the last.
        """
        saves = (each for window in windows for each in window.calls(SAVE))
        if len({each.step for each in saves if each.fields.get(CURRENT)}) > 1:
            yield {"api": SAVE}

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each checkpoint."""
        for record in window.calls(params["api"]):
            if CURRENT in record.fields:
                holds = bool(record.fields[CURRENT] or record.fields.get(BEST))
                found = "its weights are those of no model that ran"
                yield Example(holds, (record,), SAVE, found)

    def sentence(self, params: Params) -> str:
        """The rule."""
        return "A checkpoint has the weights that a model has then, or had in its best evaluation."

    def concerns(self, params: Params) -> frozenset[str]:
        """Saving."""
        return frozenset({SAVE})


RELATION = WeightsSaved()
