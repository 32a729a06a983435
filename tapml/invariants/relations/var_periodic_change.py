"""VarPeriodicChange: a kind of variable changes with every step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import RATE, ROUNDED, STEP, Record, Window
from tapml.invariants.relation import Example, Memory, Params, Relation


class VarPeriodicChange(Relation):
    """The value after a step differs from that after the step before."""

    name = "VarPeriodicChange"
    # What the optimizer holds, and whether there is a gradient, are causes of the change: an error
    # in them is to be seen. Buffers follow no rule of their own.
    avoided = ("in_optimizer", "in_model", "changed", "grad")

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """Parameters, if any changes."""
        if any(state.fields.get("changed") for window in windows for state in window.states):
            yield {"type": "Parameter", "attribute": "data"}
        if any(_is_loose(state) for window in windows for state in window.states):
            yield {"type": "Parameter", "attribute": "data", "held": "optimizer"}

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each variable of the model after each step but the first.

        A schedule may begin, or end a cycle, with one step at a rate of zero.
        """
        steps = window.calls(STEP)
        still = bool(steps) and all(RATE in each.fields for each in steps)
        again, memory["still"] = memory.get("still", False), still
        if still and not again:
            return
        for state in window.states:
            fields = state.fields
            mine = _is_loose(state) if "held" in params else fields["in_model"]
            rounded = ROUNDED in fields
            if fields["type"] == params["type"] and mine and "changed" in fields and not rounded:
                holds = bool(fields["changed"])
                found = "" if holds else f"{state.name} kept its value (digest {state.digest[:8]})"
                yield Example(holds, (state,), state.name, found)

    def sentence(self, params: Params) -> str:
        """The kind of variable."""
        where = " that an optimizer holds and no model has" if "held" in params else ""
        return f"The {params['attribute']} of each {params['type']}{where} changes with every step."

    def concerns(self, params: Params) -> frozenset[str]:
        """The attribute."""
        return frozenset({f"{params['type']}.{params['attribute']}"})


def _is_loose(state: Record) -> bool:
    return bool(state.fields["in_optimizer"]) and not state.fields["in_model"]


RELATION = VarPeriodicChange()
