"""TargetOrigin: the target of a loss is the one that belongs to the model's input.

A tensor of the batch that the data loader delivered last, or the rows of all targets that lie where
the input lies in all inputs, or that the same index picked. Labels that were shuffled, shifted, or
kept from a batch before are another tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import CALL, ELSEWHERE, ORIGIN, WITH_TARGET, Record, Window
from tapml.invariants.relation import Example, Memory, Params, Relation, short_name
from tapml.runs.wording import counted


class TargetOrigin(Relation):
    """Where the target of each call of a loss in training comes from; new beside the paper's."""

    name = "TargetOrigin"
    structural = True
    own = True
    origins = True
    least = 3
    avoided = ("",)
    apis = ("api",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """Losses whose targets have one origin."""
        for api in sorted(WITH_TARGET):
            found = {origin for window in windows for _, origin in _origins(window, api)}
            if len(found) == 1 and ELSEWHERE not in found:
                yield {"api": api, "origin": found.pop()}

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each call in training."""
        for record, origin in _origins(window, params["api"]):
            holds = origin == params["origin"]
            found = "" if holds else f"the target {_says(origin, beside=params['origin'])}"
            yield Example(holds, (record,), record.name, found)

    def sentence(self, params: Params) -> str:
        """The origin."""
        return f"In training, the target of {short_name(params['api'])} {_says(params['origin'])}."

    def concerns(self, params: Params) -> frozenset[str]:
        """The target."""
        return frozenset({"targets"})


def _origins(window: Window, api: str) -> Iterator[tuple[Record, str]]:
    for record in window.calls(api):
        origin = record.fields.get(ORIGIN)
        context = record.context
        if record.kind == CALL and isinstance(origin, str) and context.get("training"):
            yield record, origin


def _says(origin: str, beside: str = "") -> str:
    """An origin in English; that of another target than the one that is wanted."""
    kind, *places = origin.split()
    if kind == ELSEWHERE:
        from_batch = beside.startswith("batch")
        return "is no tensor of the last batch" if from_batch else "does not lie beside the input"
    *number, rows, columns = map(int, places)
    between = " and ".join(
        counted(abs(many), what) for many, what in ((rows, "row"), (columns, "column")) if many
    )
    way = "after" if rows > 0 or (columns > 0 and not rows) else "before"
    if number:
        shifted = f", {between} {way} the input" if between else ""
        return f"is tensor {number[0] + 1} of the last batch{shifted}"
    return f"begins {between} {way} the input" if between else "has the rows of the input"


RELATION = TargetOrigin()
