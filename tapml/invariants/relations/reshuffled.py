"""Reshuffled: an epoch does not begin as the one before did.

A loader that lost ``shuffle``, or a distributed sampler that is not told the epoch, gives one order
again and again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import BATCH, Record, Window
from tapml.invariants.relation import Example, Memory, Params, Relation

# Few rows may come first twice by chance: of eight, one order in 40,000 is another's.
_LEAST_BATCHES, _LEAST_ROWS = 2, 8


class Reshuffled(Relation):
    """The first batches of each epoch in training; new beside the paper's relations."""

    name = "Reshuffled"
    structural = True
    batches = True
    own = True
    least = 1
    avoided = ("",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """One rule, if there is a second epoch."""
        begun = [each for w in windows for process in w.processes for each in _first(process)]
        if any(each.fields["place"] == 0 and each.context.get("epoch") for each in begun):
            yield {}

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each epoch but the first of each process and data loader."""
        for number, process in enumerate(window.processes):
            for batch in _first(process):
                place, compared = batch.fields["place"], _compared(batch)
                # Loaders that differ in these take turns, such as those of two data sets.
                key = number, batch.fields["batches"], batch.fields["workers"]
                before, now = memory.setdefault(key, ([], []))
                if place == 0:
                    before, now = memory[key] = now, []
                now.append(batch)
                if len(now) == len(before) == compared:
                    both = zip(before, now, strict=True)
                    differ = any(one.digest != other.digest for one, other in both)
                    found = f"it begins with the batches of the epoch before ({now[0].digest[:8]})"
                    yield Example(differ, (before[-1], batch), BATCH, found)

    def sentence(self, params: Params) -> str:
        """The rule."""
        return "An epoch of training does not begin with the batches of the epoch before."

    def concerns(self, params: Params) -> frozenset[str]:
        """The data loader."""
        return frozenset({BATCH})


def _first(process: Sequence[Record]) -> list[Record]:
    return [
        record
        for record in process
        if record.name == BATCH
        and record.digest
        and record.context.get("stage") != "eval"
        and record.fields.get("place") in range(_compared(record))
        and int(str(record.fields.get("batches", 0))) >= _compared(record)
    ]


def _compared(batch: Record) -> int:
    """How many batches of this size are compared: two, or more where they have few rows."""
    shapes = (each for name, each in batch.fields.items() if name.endswith(".shape"))
    rows = next((each[0] for each in shapes if isinstance(each, list) and each), 1)
    return max(_LEAST_BATCHES, -(-_LEAST_ROWS // max(1, int(str(rows)))))


RELATION = Reshuffled()
