"""DistinctBatches: no two workers of a data loader, and no two ranks, deliver the same batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from tapml.invariants.record import BATCH, Record, Window
from tapml.invariants.relation import Example, Memory, Params, Relation


class DistinctBatches(Relation):
    """Digests of whole batches; new beside the paper's relations."""

    name = "DistinctBatches"
    structural = True
    batches = True
    avoided = ("result",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """Over workers, and over ranks if there are several."""
        if any(_batches(process) for window in windows for process in window.processes):
            yield {"mode": "workers"}
        both = [_parts(each) for w in windows for p in w.processes for each in _batches(p)]
        # A part of labels repeats; where all parts are compared, the whole is.
        if any(len(parts) > 1 and sum(map(bool, parts)) == 1 for parts in both):
            yield {"mode": "samples"}
        if any(len(window.processes) > 1 for window in windows):
            yield {"mode": "ranks"}

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each batch with those that other workers or ranks delivered beside it."""
        processes = [_batches(process) for process in window.processes]
        if params["mode"] == "ranks":
            for one, other in combinations(processes, 2):
                for a, b in zip(one, other, strict=False):
                    found = f"ranks {a.rank} and {b.rank} got the same batch {a.digest[:8]}"
                    yield Example(a.digest != b.digest, (a, b), BATCH, found)
            return
        for place, batches in enumerate(processes):
            recent: list[Record] = memory.setdefault(place, [])
            for batch in batches:
                for earlier in recent:
                    epoch = earlier.context.get("epoch") == batch.context.get("epoch")
                    begins = earlier is recent[-1] and _is_broken_off(earlier)
                    if epoch or begins:
                        differ = earlier.digest != batch.digest
                        if params["mode"] == "samples":
                            pairs = zip(_parts(earlier), _parts(batch), strict=False)
                            differ = all(one != other or not one for one, other in pairs)
                        found = "" if differ else _said(earlier, batch, same_epoch=epoch)
                        yield Example(differ, (earlier, batch), BATCH, found)
                recent.append(batch)
                workers = batch.fields["workers"]
                del recent[: -max(int(workers) if isinstance(workers, int) else 1, 1)]

    def sentence(self, params: Params) -> str:
        """Over what."""
        if params["mode"] == "ranks":
            return "Two ranks never train on the same batch in one step."
        if params["mode"] == "samples":
            return "Samples of neighbouring batches differ, whatever their labels."
        return "Neighbouring batches differ, whichever worker made them."

    def concerns(self, params: Params) -> frozenset[str]:
        """The data loader."""
        return frozenset({BATCH})


def _is_broken_off(batch: Record) -> bool:
    """Whether more batches were to come; a whole epoch of single samples may end as one begins."""
    place, batches = batch.fields["place"], batch.fields.get("batches")
    return isinstance(place, int) and isinstance(batches, int) and place + 1 < batches


def _parts(batch: Record) -> list[str]:
    found = batch.fields.get("result.digest")
    return [str(each) for each in found] if isinstance(found, list) else []


def _said(earlier: Record, batch: Record, *, same_epoch: bool) -> str:
    one, other = earlier.fields["place"], batch.fields["place"]
    if same_epoch:
        workers = batch.fields["workers"]
        which = f"batches {one} and {other} of the epoch"
        return f"{which} are the same ({batch.digest[:8]}); the data loader has {workers} workers"
    return (
        f"batch {other} of an epoch is batch {one} of the epoch before ({batch.digest[:8]}); an "
        f"epoch has {batch.fields['batches']} batches"
    )


def _batches(process: Sequence[Record]) -> list[Record]:
    return [
        record
        for record in process
        if record.name == BATCH and record.digest and record.context.get("stage") != "eval"
    ]


RELATION = DistinctBatches()
