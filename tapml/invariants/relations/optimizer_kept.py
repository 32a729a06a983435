"""OptimizerKept: no optimizer is made for parameters that another one trains; it has no moments.

One for a new model, or for one that got its first values again, as in another fold, is another
matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import AGAIN, MAKE, STEP, Window
from tapml.invariants.relation import Example, Memory, Params, Relation


class OptimizerKept(Relation):
    """Optimizers made between steps; new beside the paper's relations."""

    name = "OptimizerKept"
    structural = True
    own = True
    avoided = ("",)
    apis = ("api",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """One rule, if an optimizer steps."""
        if any(window.calls(STEP) for window in windows):
            yield {"api": MAKE}

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """The last optimizer step of each process in each step but the first."""
        for process in window.processes if window.step > 0 else ():
            steps = [record for record in process if record.name == STEP]
            made = [
                record
                for record in process
                if record.name == params["api"] and record.fields.get(AGAIN)
            ]
            if steps:
                call = (made or steps)[-1]
                maker = call.fields.get("class")
                found = f"{maker} was made after {window.step} steps, for parameters as they were"
                yield Example(not made, (call,), MAKE, found)

    def sentence(self, params: Params) -> str:
        """The rule."""
        return "No optimizer is made for parameters that another one trains."

    def concerns(self, params: Params) -> frozenset[str]:
        """Making optimizers."""
        return frozenset({MAKE})


RELATION = OptimizerKept()
