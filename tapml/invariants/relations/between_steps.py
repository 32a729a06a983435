"""BetweenSteps: between two optimizer steps, nothing else changes what an optimizer trains.

``kept``: as when a perturbation is undone, or averaged weights leave the model after an
evaluation. ``changed``: something always changes it, such as clipping of weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import STEP, Window
from tapml.invariants.relation import Example, Memory, Params, Relation


class BetweenSteps(Relation):
    """Parameters before a step, beside what the step before left; new beside the paper's."""

    name = "BetweenSteps"
    structural = True
    between = True
    least = 3
    # It holds for each step of an optimizer, or it is no rule.
    avoided = ("",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """For each optimizer, by the order in which they first step."""
        found = {
            (str(record.fields["optimizer"]), "changed" if record.fields["moved"] else "kept")
            for window in windows
            for record in window.calls(STEP)
            if "moved" in record.fields
        }
        return [{"optimizer": place, "mode": mode} for place, mode in sorted(found)]

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each step but the first of the run."""
        for record in window.calls(STEP):
            moved = record.fields.get("moved")
            if moved is None or str(record.fields["optimizer"]) != params["optimizer"]:
                continue
            holds = bool(moved) == (params["mode"] == "changed")
            found = f"{moved} is not what the step before left" if moved else "nothing changed"
            yield Example(holds, (record,), STEP, found)

    def sentence(self, params: Params) -> str:
        """Which way."""
        which = "" if params["optimizer"] == "0" else f" of optimizer {params['optimizer']}"
        if params["mode"] == "changed":
            return f"Before each step{which}, something else changes parameters."
        return f"Before each step{which}, parameters are what the step before left."

    def concerns(self, params: Params) -> frozenset[str]:
        """The parameters."""
        return frozenset({"parameters between steps"})


RELATION = BetweenSteps()
