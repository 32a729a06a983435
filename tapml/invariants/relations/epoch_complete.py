"""EpochComplete: an epoch of training delivers all its batches before the next one begins.

A ``break`` that was left in a loop trains on the first batches alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import BATCH, Record, Window
from tapml.invariants.relation import Example, Memory, Params, Relation


class EpochComplete(Relation):
    """The last batch of each epoch but the last one; new beside the paper's relations."""

    name = "EpochComplete"
    structural = True
    # Steps that repeat the one before differ in the place of their batch.
    batches = True
    own = True
    least = 1
    avoided = ("",)
    apis = ("api",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """One rule, if there is a second epoch."""
        begun = [each for window in windows for each in window.calls(BATCH) if _trains(each)]
        if any(each.fields["place"] == 0 and each.context.get("epoch") for each in begun):
            yield {"api": BATCH}

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each epoch that another one of its data loader follows, in each process."""
        for number, process in enumerate(window.processes):
            for batch in process:
                if batch.name != params["api"] or not _trains(batch):
                    continue
                batches = batch.fields["batches"]
                # Loaders that differ in these take turns, such as those of two data sets.
                key = number, batches, batch.fields["workers"]
                last: Record | None = memory.get(key)
                memory[key] = batch
                if last is not None and batch.fields["place"] == 0:
                    came = int(str(last.fields["place"])) + 1
                    found = f"the epoch ended after {came} of {batches} batches"
                    yield Example(came == batches, (last, batch), BATCH, found)

    def sentence(self, params: Params) -> str:
        """The rule."""
        return "An epoch of training has all its batches before the next one begins."

    def concerns(self, params: Params) -> frozenset[str]:
        """The data loader."""
        return frozenset({BATCH})


def _trains(batch: Record) -> bool:
    known = isinstance(batch.fields.get("batches"), int) and "raised" not in batch.fields
    return known and batch.context.get("stage") != "eval"


RELATION = EpochComplete()
