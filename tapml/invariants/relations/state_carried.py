"""StateCarried: a model that gives a state gets it back in its next call.

A recurrent model that is trained in chunks begins a sequence without a state, and takes it from
chunk to chunk. Sequences of one chunk never have one, so it takes several calls in a row without
it to be a violation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tapml.invariants.record import FORWARD, MANY, WITHOUT, Window
from tapml.invariants.relation import Example, Memory, Params, Relation

_MORE: Final = 3


class StateCarried(Relation):
    """Arguments beside results of the call before; new beside the paper's relations."""

    name = "StateCarried"
    structural = True
    inputs = True
    least = 3
    avoided = ("",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """Classes of models that get back what they gave, and how often in a row they do not."""
        longest: dict[str, int] = {}
        carries = set()
        for record in (each for window in windows for each in window.calls(FORWARD)):
            without, name = record.fields.get(WITHOUT), str(record.fields.get("class"))
            if isinstance(without, int):
                longest[name] = max(longest.get(name, 0), without)
                carries |= set() if without else {name}
        for name in sorted(carries):
            if longest[name] + _MORE <= MANY:
                yield {"class": name, "without": str(longest[name])}

    def widest(self, found: Sequence[Params]) -> Sequence[Params]:
        """The longest row of each class."""
        best: dict[str, Params] = {}
        for each in sorted(found, key=lambda each: int(each["without"])):
            best[each["class"]] = each
        return list(best.values())

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each call in training that gets a state, or is one too many without."""
        most = int(params["without"]) + _MORE
        for record in window.calls(FORWARD):
            without = record.fields.get(WITHOUT)
            if record.fields.get("class") != params["class"] or not isinstance(without, int):
                continue
            if not without or without >= most:
                found = f"{params['class']} got no result of its call before, {most} times in a row"
                yield Example(not without, (record,), FORWARD, found)

    def sentence(self, params: Params) -> str:
        """The rule."""
        return f"{params['class']} gets the state that its call before gave."

    def concerns(self, params: Params) -> frozenset[str]:
        """The state."""
        return frozenset({"state of a model"})


RELATION = StateCarried()
