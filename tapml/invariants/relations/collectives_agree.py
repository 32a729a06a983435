"""CollectivesAgree: all ranks make the same collective calls in the same order.

A mismatch hangs or aborts the job, so the trace is flushed before each collective.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from tapml.invariants.record import CALL, Record, Window
from tapml.invariants.relation import Example, Memory, Params, Relation, short_name

# Point to point: ranks differ by design.
_ALONE = frozenset(f"torch.distributed.{name}" for name in ("send", "recv", "isend", "irecv"))


class CollectivesAgree(Relation):
    """Names, dtypes and extents of collectives by rank; new beside the paper's relations."""

    name = "CollectivesAgree"
    structural = True
    avoided = ("arg.",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """One rule, if there are collectives on several ranks."""
        if any(len(w.processes) > 1 and any(map(_collectives, w.processes)) for w in windows):
            yield {}

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """The n-th collective of the first rank and of each other one in this step."""
        if len(window.processes) < 2:
            return
        first, *others = map(_collectives, window.processes)
        for other in others:
            for one, two in zip_longest(first, other):
                there = tuple(record for record in (one, two) if record is not None)
                holds = one is not None and two is not None and _key(one) == _key(two)
                found = " but ".join(f"rank {each.rank} calls {_text(each)}" for each in there)
                if len(there) == 1:
                    found += ", and the other rank does not"
                yield Example(holds, there, there[-1].name, found)
                if not holds:
                    break

    def sentence(self, params: Params) -> str:
        """The rule."""
        return "All ranks make the same collective calls in the same order."

    def concerns(self, params: Params) -> frozenset[str]:
        """Communication."""
        return frozenset({"collectives"})


def _collectives(process: Sequence[Record]) -> list[Record]:
    return [
        record
        for record in process
        if record.kind == CALL
        and record.name.startswith("torch.distributed.")
        and record.name not in _ALONE
    ]


def _key(record: Record) -> tuple[object, ...]:
    fields = record.fields
    # Of a scatter or gather, the lists exist on one rank alone; an all-to-all may be uneven.
    extents = [fields.get("arg.0.shape")]
    if "all_gather" in record.name:
        extents += [fields.get("arg.0.0.shape"), fields.get("arg.1.shape")]
    return (record.name, fields.get("arg.0.dtype"), fields.get("op"), str(extents))


def _text(record: Record) -> str:
    fields = record.fields
    shape = fields.get("arg.0.shape", fields.get("arg.1.shape"))
    op = fields.get("op", "default")
    with_op = "" if op == "default" else f" ({op})"
    return short_name(record.name) + (f" of {shape}" if shape is not None else "") + with_op


RELATION = CollectivesAgree()
