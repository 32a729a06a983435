"""Host memory of a run: consecutively written tensors share a segment.

A segment needs one allocation and, if the run is recorded, one comparison or hash and one write for
many tensors. Small and large tensors are separate: large ones are mostly views of the KV cache and
change little between runs. State has its own segment because it outlives the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tapml.execute.arrays import ALIGNMENT
from tapml.execute.binding import BoundEntry

SegmentKind: TypeAlias = Literal["small", "large", "state"]

LARGE_BYTES: Final = 64 << 10
# Bytes of a segment, unless a single tensor is larger.
SEGMENT_BYTES: Final[Mapping[SegmentKind, int]] = {
    "small": 512 << 10,
    "large": 4 << 20,
    "state": 1 << 62,
}
# Above this, a run frees segments as soon as no call site reads them.
RESIDENT_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class Span:
    """Positions among a run's operations; `last_use` may be one past the last."""

    first: int
    last_write: int
    last_use: int


@dataclass(frozen=True, eq=False)
class Segment:
    """One allocation; hashed by identity.

    Attributes
    ----------
    index
        Position among the program's segments.
    nbytes
        Size, a multiple of the alignment.
    offsets
        First byte of each storage in the segment, by storage name.
    dense
        Whether every byte is written.
    span
        First write, last write, last use of any of its tensors.
    """

    index: int
    kind: SegmentKind
    nbytes: int
    offsets: Mapping[str, int]
    dense: bool
    span: Span


def lay_out(bound: BoundEntry, spans: Mapping[str, Span]) -> tuple[Segment, ...]:
    """Assign every storage of `spans` to a segment.

    Activations are in the order of their first write. New state is in the plan's order, so that
    entries that replace the same state use the same layout.
    """
    after = [bound.values[value].storage for value in bound.after.values()]
    before = {bound.values[value].storage for value in bound.before.values()}
    groups: list[tuple[SegmentKind, list[str]]] = []
    state = [storage for storage in dict.fromkeys(after) if storage in spans.keys() - before]
    if state:
        groups.append(("state", state))
    open_groups: dict[SegmentKind, list[str]] = {}
    room: dict[SegmentKind, int] = {}
    for storage in sorted(spans.keys() - set(state), key=lambda name: spans[name].first):
        if storage in before:
            groups.append(("state", [storage]))
            continue
        nbytes = padded(bound.storages[storage].nbytes)
        kind: SegmentKind = "large" if nbytes >= LARGE_BYTES else "small"
        if nbytes > room.get(kind, -1):
            open_groups[kind] = []
            groups.append((kind, open_groups[kind]))
            room[kind] = SEGMENT_BYTES[kind]
        open_groups[kind].append(storage)
        room[kind] -= nbytes
    return tuple(
        _segment(index, kind, group, bound, spans) for index, (kind, group) in enumerate(groups)
    )


def padded(nbytes: int) -> int:
    """`nbytes` rounded up to the alignment of tensors."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _segment(
    index: int,
    kind: SegmentKind,
    group: list[str],
    bound: BoundEntry,
    spans: Mapping[str, Span],
) -> Segment:
    offsets: dict[str, int] = {}
    end = 0
    for storage in group:
        offsets[storage] = end
        end += padded(bound.storages[storage].nbytes)
    return Segment(
        index=index,
        kind=kind,
        nbytes=end,
        offsets=offsets,
        dense=all(
            bound.storages[storage].dense
            and padded(bound.storages[storage].nbytes) == bound.storages[storage].nbytes
            for storage in group
        ),
        span=Span(
            min(spans[storage].first for storage in group),
            max(spans[storage].last_write for storage in group),
            max(spans[storage].last_use for storage in group),
        ),
    )
