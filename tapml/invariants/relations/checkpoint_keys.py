"""CheckpointKeys: what ``torch.save`` writes has every parameter and buffer of the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import SAVE, Window
from tapml.invariants.relation import Example, Memory, Params, Relation


class CheckpointKeys(Relation):
    """Keys of a saved checkpoint against the model's own names; new beside the paper's."""

    name = "CheckpointKeys"
    structural = True
    least = 1
    avoided = ("arg.", "missing")

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """One rule, if a checkpoint was written."""
        if any(each.fields.get("weights") for w in windows for each in w.calls(SAVE)):
            yield {}

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each checkpoint of the model."""
        for record in window.calls(SAVE):
            if record.fields.get("weights"):
                missing = record.fields["missing"]
                names = ", ".join(map(str, missing if isinstance(missing, list) else []))
                found = f"{record.fields['missing.count']} are missing: {names}"
                yield Example(record.fields["missing.count"] == 0, (record,), SAVE, found)

    def sentence(self, params: Params) -> str:
        """The rule."""
        return "A saved checkpoint has every parameter and buffer of the model."

    def concerns(self, params: Params) -> frozenset[str]:
        """Saving."""
        return frozenset({SAVE})


RELATION = CheckpointKeys()
