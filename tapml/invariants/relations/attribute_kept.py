"""AttributeKept: a number or word that a module has as an attribute is its own to change.

A library that keeps its notes under a name the model uses, such as ``id``, changes what the model
does by that name. Flags are left out: they are switches for others to set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import FORWARD, OVERWRITE, Window
from tapml.invariants.relation import Example, Memory, Params, Relation


class AttributeKept(Relation):
    """Attributes of modules that others overwrite; new beside the paper's relations."""

    name = "AttributeKept"
    structural = True
    least = 1
    # It holds for a run or it does not: no field of a forward call says which.
    avoided = ("",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """One rule, for every run with a model."""
        if any(window.calls(FORWARD) for window in windows):
            yield {}

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each attribute that was overwritten, and each forward call without such a one before."""
        for record in window.records:
            if record.name == OVERWRITE:
                memory[record.rank] = True
                fields = record.fields
                name = f"{fields['class']}.{fields['attribute']}"
                found = (
                    f"{name} was {fields['from']!r} and was set to {fields['to']!r} from outside"
                )
                yield Example(False, (record,), name, found)
            elif record.name == FORWARD and not memory.get(record.rank):
                yield Example(True, (record,), FORWARD, "")

    def sentence(self, params: Params) -> str:
        """The rule."""
        return "Numbers and words that a module has as attributes are changed by itself alone."

    def concerns(self, params: Params) -> frozenset[str]:
        """Attributes of modules."""
        return frozenset({"attributes of modules"})


RELATION = AttributeKept()
