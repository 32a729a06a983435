"""EpochComplete: no two epochs of training in a row end before all their batches came.

A ``break`` that was left in a loop trains on the first batches alone. Epochs that end early on
purpose are told with ``set_meta(planned_batches=...)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import BATCH, PLANNED_BATCHES, PLANNED_STEPS, Record, Window
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
        """Each epoch that another one of its data loader follows, in each process.

        At the end of a run, also one after an epoch that was broken off.
        """
        for number, process in enumerate(window.processes):
            for batch in process:
                if batch.name != params["api"] or not _trains(batch):
                    continue
                # Loaders that differ in these take turns, such as those of two data sets.
                key = number, batch.fields["batches"], batch.fields["workers"]
                last, broken = memory.get(key, (None, False))
                if last is not None and batch.fields["place"] == 0:
                    example, broken = _epoch(last, batch, broken)
                    yield example
                memory[key] = batch, broken
        for last, broken in memory.values() if window.all_seen else ():
            if broken:
                yield _epoch(last, last, broken)[0]

    def sentence(self, params: Params) -> str:
        """The rule."""
        return "No two epochs of training in a row end before all their batches came."

    def concerns(self, params: Params) -> frozenset[str]:
        """The data loader."""
        return frozenset({BATCH})


def _epoch(last: Record, then: Record, broken: bool) -> tuple[Example, bool]:
    """An epoch by its last batch, after one that was broken off or not, and whether it was too.

    One in a row may be: there a budget of steps ends a part of the training.
    """
    came, batches = int(str(last.fields["place"])) + 1, last.fields["batches"]
    planned = {last.context.get(PLANNED_BATCHES), batches}
    whole = came in planned or last.step + 1 == last.context.get(PLANNED_STEPS)
    found = f"two epochs in a row were broken off, the second after {came} of {batches} batches"
    return Example(whole or not broken, (last, then), BATCH, found), not whole


def _trains(batch: Record) -> bool:
    known = isinstance(batch.fields.get("batches"), int) and "raised" not in batch.fields
    return known and batch.context.get("stage") != "eval"


RELATION = EpochComplete()
