"""SentReceived: what a rank receives is, bit for bit, what its peer sent."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tapml.invariants.record import Record, Window
from tapml.invariants.relation import Example, Memory, Params, Relation

_SENDS: Final = ("torch.distributed.send", "torch.distributed.isend")
_RECEIVES: Final = ("torch.distributed.recv",)


class SentReceived(Relation):
    """The n-th message between two ranks; new beside the paper's relations."""

    name = "SentReceived"
    structural = True
    avoided = ("arg.",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """One rule, if ranks receive from each other."""
        if any(window.calls(name) for window in windows for name in _RECEIVES):
            yield {}

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each message with both ends seen."""
        sent: dict[object, deque[Record]] = memory.setdefault("sent", defaultdict(deque))
        received: dict[object, deque[Record]] = memory.setdefault("received", defaultdict(deque))
        for record in window.records:
            if record.digest and record.name in _SENDS:
                sent[record.rank, record.fields.get("peer")].append(record)
            elif record.digest and record.name in _RECEIVES and record.done:
                received[record.fields.get("peer"), record.rank].append(record)
        for way, waiting in sent.items():
            while waiting and received[way]:
                one, other = waiting.popleft(), received[way].popleft()
                found = (
                    f"rank {one.rank} sent {one.digest[:8]}, rank {other.rank} received "
                    f"{other.digest[:8]}"
                )
                yield Example(one.digest == other.digest, (one, other), other.name, found)

    def sentence(self, params: Params) -> str:
        """The rule."""
        return "Each received tensor has the bits that were sent."

    def concerns(self, params: Params) -> frozenset[str]:
        """Messages between two ranks."""
        return frozenset({"messages"})


RELATION = SentReceived()
