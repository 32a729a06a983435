"""StateCarried: a model that gives a state gets it back in its next call.

A recurrent model that is trained in chunks begins a sequence without a state, and takes it from
chunk to chunk. Two calls in a row without it are a violation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import CARRIED, FORWARD, Window
from tapml.invariants.relation import Example, Memory, Params, Relation


class StateCarried(Relation):
    """Arguments beside results of the call before; new beside the paper's relations."""

    name = "StateCarried"
    structural = True
    inputs = True
    least = 3
    avoided = ("",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """Classes of models that get back what they gave."""
        calls = [record for window in windows for record in window.calls(FORWARD)]
        found = {str(each.fields["class"]) for each in calls if each.fields.get(CARRIED)}
        return [{"class": name} for name in sorted(found)]

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each call in training from the second on, but the first of a new sequence."""
        for record in window.calls(FORWARD):
            carried = record.fields.get(CARRIED)
            if record.fields.get("class") != params["class"] or carried is None:
                continue
            before = memory.get(record.rank)
            memory[record.rank] = carried
            if carried or not before:
                found = f"{params['class']} got no result of its call before, two times in a row"
                yield Example(bool(carried), (record,), FORWARD, found)

    def sentence(self, params: Params) -> str:
        """The rule."""
        return f"{params['class']} gets the state that its call before gave."

    def concerns(self, params: Params) -> frozenset[str]:
        """The state."""
        return frozenset({"state of a model"})


RELATION = StateCarried()
