"""VariableAttribute: a variable stays frozen, without gradients, in no optimizer, or of a dtype."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tapml.invariants.record import MODEL, Record, Window
from tapml.invariants.relation import Example, Memory, Params, Relation

_ATTRIBUTES: Final = ("requires_grad", "dtype", "in_optimizer", "grad")


class VariableAttribute(Relation):
    """The value of an attribute of one variable, where variables of the model differ in it."""

    name = "VariableAttribute"
    avoided = ("requires_grad", "dtype", "grad", "changed", "in_", "type", "attr")

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """Attributes in which the parameters differ: others say nothing about this one.

        A part of a model that trains may be used later, such as an expert of several: only whole
        models stay without gradients.
        """
        for attribute in _ATTRIBUTES:
            values: dict[str, set[str]] = defaultdict(set)
            places, trained = {}, set()
            for window in windows:
                for state in window.states:
                    if state.fields["type"] == "Parameter" and state.fields["in_model"]:
                        value = _value(state, attribute)
                        values[state.name].add(value)
                        places[state.name] = place = state.fields.get(MODEL)
                        trained |= {place} if value == "nonzero" else set()
            if len(set.union(set(), *values.values())) > 1:
                for name, seen in sorted(values.items()):
                    left = seen == {"none"} and places[name] not in trained
                    if len(seen) == 1 and (attribute != "grad" or left):
                        yield {"variable": name, "attribute": attribute, "value": min(seen)}

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """The variable after each step."""
        for state in window.states:
            if state.name == params["variable"]:
                value = _value(state, params["attribute"])
                found = f"{params['attribute']} of {state.name} is {value}"
                yield Example(value == params["value"], (state,), state.name, found)

    def sentence(self, params: Params) -> str:
        """Variable, attribute and value."""
        return f"{params['attribute']} of {params['variable']} is {params['value']}."

    def concerns(self, params: Params) -> frozenset[str]:
        """The attribute of all variables: many change for one reason."""
        return frozenset({params["attribute"]})


def _value(state: Record, attribute: str) -> str:
    value = str(state.fields.get(attribute, "none"))
    # Gradients may be cleared to zeros.
    return "none" if attribute == "grad" and value == "zero" else value


RELATION = VariableAttribute()
