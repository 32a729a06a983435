"""DistinctInputs: calls of a model in one step get different inputs.

Two views of a sample, or the parts of a batch that add up, differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import FORWARD, REPEATED, Window
from tapml.invariants.relation import Example, Memory, Params, Relation

_PYTORCH = "torch.nn."


class DistinctInputs(Relation):
    """Arguments of whole models by digest; new beside the paper's relations."""

    name = "DistinctInputs"
    structural = True
    inputs = True
    least = 3
    avoided = ("",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """Classes that run several times in a step; those of PyTorch may be any program's."""
        calls = [record for window in windows for record in window.calls(FORWARD)]
        found = {str(each.fields["class"]) for each in calls if each.fields.get(REPEATED) is False}
        apis = {api for window in windows for api in window.by_name if api.startswith(_PYTORCH)}
        return [{"class": name} for name in sorted(found - {api.split(".")[-2] for api in apis})]

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each such call; a closure inside an optimizer step runs again by design."""
        for record in window.calls(FORWARD):
            again = record.fields.get(REPEATED)
            mine = record.parent < 0 and record.fields.get("class") == params["class"]
            if mine and again is not None:
                found = f"{params['class']} got the same input twice in one step"
                yield Example(not again, (record,), FORWARD, found)

    def sentence(self, params: Params) -> str:
        """The rule."""
        return f"Calls of {params['class']} in one step get different inputs."

    def concerns(self, params: Params) -> frozenset[str]:
        """The inputs."""
        return frozenset({"inputs of a model"})


RELATION = DistinctInputs()
