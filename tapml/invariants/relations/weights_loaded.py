"""WeightsLoaded: what a program loads into a model is what the model has.

``keys``: all keys of the weights are the model's, and the other way round. ``moments``: where
weights are loaded between two steps, so is the state of an optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import LOAD, LOAD_OPTIMIZER, Window
from tapml.invariants.relation import Example, Memory, Params, Relation

_MISSING, _UNEXPECTED = "result.0.length", "result.1.length"


class WeightsLoaded(Relation):
    """Calls of ``load_state_dict``; new beside the paper's relations."""

    name = "WeightsLoaded"
    structural = True
    own = True
    least = 1
    avoided = ("",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """The ways that the run shows."""
        if any(window.calls(LOAD) for window in windows):
            yield {"mode": "keys"}
        if any(window.calls(LOAD) and window.calls(LOAD_OPTIMIZER) for window in windows):
            yield {"mode": "moments"}

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each load; of several between two steps the last."""
        for process in window.processes:
            loads = [each for each in process if each.name == LOAD and each.done]
            if params["mode"] == "keys":
                for load in loads:
                    missing, other = (load.fields.get(name) for name in (_MISSING, _UNEXPECTED))
                    if missing is not None and other is not None:
                        found = f"{missing} keys are missing, and {other} are not the model's"
                        yield Example(not (missing or other), (load,), LOAD, found)
            elif loads and window.step > 0:
                holds = any(each.name == LOAD_OPTIMIZER for each in process)
                found = "no optimizer was given its state beside the weights"
                yield Example(holds, (loads[-1],), LOAD, found)

    def sentence(self, params: Params) -> str:
        """Which way."""
        if params["mode"] == "keys":
            return "Weights that are loaded have the keys of the model, and no others."
        return "Where weights are loaded between two steps, so is the state of an optimizer."

    def calls(self, params: Params) -> frozenset[str]:
        """Loads."""
        return frozenset({LOAD} if params["mode"] == "keys" else {LOAD, LOAD_OPTIMIZER})

    def concerns(self, params: Params) -> frozenset[str]:
        """Loading."""
        return frozenset({LOAD})


RELATION = WeightsLoaded()
