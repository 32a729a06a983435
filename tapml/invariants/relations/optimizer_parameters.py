"""OptimizerParameters: the optimizers hold what the model trains, and nothing else.

``trainable``: each trainable parameter of a model that ran with gradients is in an optimizer.
``used``: each parameter of a model that gets a gradient is in an optimizer, or changes otherwise;
a target network, which gets none, may stay outside.
``belongs``: each parameter in an optimizer is one of a model that ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import IDLE, Window
from tapml.invariants.relation import Example, Memory, Params, Relation


class OptimizerParameters(Relation):
    """Membership of parameters; new beside the paper's relations."""

    name = "OptimizerParameters"
    structural = True
    avoided = ("in_", "grad", "changed", "requires_grad", IDLE)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """All ways, if there are parameters."""
        if any(state.fields["type"] == "Parameter" for w in windows for state in w.states):
            yield {"mode": "trainable"}
            yield {"mode": "used"}
            yield {"mode": "belongs"}

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each parameter after each step."""
        for state in window.states:
            fields = state.fields
            if fields["type"] != "Parameter":
                continue
            trained = fields["in_model"] and fields["requires_grad"] and IDLE not in fields
            if params["mode"] == "trainable" and trained:
                holds = bool(fields["in_optimizer"])
                found = "" if holds else f"no optimizer holds {state.name}, which the model trains"
                yield Example(holds, (state,), state.name, found)
            if params["mode"] == "used" and fields["in_model"]:
                unused = bool(fields.get("grad_unused"))
                if unused or (fields["in_optimizer"] and fields["requires_grad"]):
                    found = f"{state.name} gets gradients, and no optimizer holds it"
                    yield Example(not unused, (state,), state.name, found)
            if params["mode"] == "belongs" and fields["in_optimizer"]:
                found = (
                    f"an optimizer holds a parameter of shape {fields['shape']} that is in no "
                    "model that ran"
                )
                yield Example(bool(fields["in_model"]), (state,), state.name, found)

    def sentence(self, params: Params) -> str:
        """Which way."""
        if params["mode"] == "trainable":
            return "Each trainable parameter of the model is in an optimizer."
        if params["mode"] == "used":
            return "Each parameter that gets gradients is in an optimizer."
        return "Each parameter in an optimizer is in a model that runs."

    def concerns(self, params: Params) -> frozenset[str]:
        """The optimizer and what it changes."""
        return frozenset({"optimizer", "Parameter.data"})


RELATION = OptimizerParameters()
