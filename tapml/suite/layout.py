"""The tensors of each call site of a run and their places: one record for many runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from tapml.execute.arrays import Bytes
from tapml.execute.binding import BoundEntry, BoundValue
from tapml.execute.program import Program
from tapml.execute.segments import Segment
from tapml.suite.index import pack, unpack
from tapml.suite.permutation import Permutation, PermutedStorage
from tapml_targets.errors import InputError

Source: TypeAlias = Literal["segment", "weight", "before", "after", "moved"]


@dataclass(frozen=True, eq=False)
class StoredSegment:
    """A segment of a layout: (first byte, end) of the kept parts, None for all; whether tracked."""

    index: int
    pieces: tuple[tuple[int, int], ...] | None
    nbytes: int
    tracked: bool

    def take(self, memory: Bytes) -> Bytes:
        """The kept bytes of a run's segment."""
        if self.pieces is None:
            return memory
        return np.concatenate([memory[first:end] for first, end in self.pieces])


@dataclass(frozen=True)
class LaidValue:
    """A tensor and the place of its bytes.

    Attributes
    ----------
    name
        Its name in the plan.
    shape, dtype
        Concrete.
    source
        ``segment`` of the run's memory, ``weight``, state ``before`` or ``after`` the run, or
        ``moved``: a permutation of another value.
    key
        Index of the segment among those kept, name of the weight or state, or index of the other
        value in the layout.
    byte_offset
        First byte there; for ``moved``, the number of the permutation.
    lifetime
        The storage's lifetime in the plan.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    source: Source
    key: int | str
    byte_offset: int
    lifetime: str


@dataclass(frozen=True)
class LaidCall:
    """A call site of a layout; `arguments` are indices of the layout's values, in parameter order.

    `symbols` are the integer arguments.
    """

    site: str
    operator: str
    layer: int | None
    arguments: tuple[int, ...]
    symbols: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Layout:
    """The kept call sites of one entry, for one set of shapes."""

    entry: str
    symbols: Mapping[str, int]
    values: tuple[LaidValue, ...]
    calls: tuple[LaidCall, ...]

    def pack(self) -> bytes:
        """Encode for the index."""
        return pack(
            (
                [
                    (v.name, v.shape, v.dtype, v.source, v.key, v.byte_offset, v.lifetime)
                    for v in self.values
                ],
                [(c.site, c.operator, c.layer, c.arguments, c.symbols) for c in self.calls],
            )
        )

    @staticmethod
    def unpack(entry: str, symbols: Mapping[str, int], blob: bytes) -> Layout:
        """Decode a blob of :meth:`pack`."""
        try:
            values, calls = unpack(blob)
            return Layout(
                entry,
                symbols,
                tuple(LaidValue(*value) for value in values),
                tuple(LaidCall(*call) for call in calls),
            )
        except (TypeError, ValueError) as error:
            raise InputError(f"the suite's index is damaged ({error}); carve again") from error


@dataclass(frozen=True, eq=False)
class KeptRun:
    """What is recorded of every run of one program; hashed by identity.

    Attributes
    ----------
    layout
        Its record.
    segments
        By the program's segment index.
    before, after
        Names of the states that are kept from before and after the run.
    weights
        Names of the weights that the call sites read.
    orders
        The permutations of ``moved`` values, by number.
    nbytes
        Upper bound on a run's stored bytes, state included.
    """

    layout: Layout
    segments: Mapping[int, StoredSegment]
    before: tuple[str, ...]
    after: tuple[str, ...]
    weights: tuple[str, ...]
    orders: tuple[Permutation, ...]
    segment_bytes: int
    nbytes: int


def keep_run(
    program: Program, positions: Iterable[int], permuted: Mapping[str, PermutedStorage]
) -> KeptRun:
    """Lay out only the call sites at `positions` of a program.

    `permuted` are the storages that hold a permutation of another value, by name.
    """
    bound = program.bound
    calls = [bound.calls[position] for position in sorted(positions)]
    wanted = _with_sources(bound, (i for call in calls for i in call.arguments), permuted)
    storages = {bound.storage_of(index) for index in wanted} - permuted.keys()
    segments: dict[int, StoredSegment] = {}
    places: dict[str, tuple[int, int]] = {}
    for segment in program.segments:
        kept = storages & segment.offsets.keys()
        if not kept or segment.kind == "state":
            continue
        record, offsets = _keep_segment(segment, kept, len(segments))
        segments[segment.index] = record
        places.update({storage: (record.index, offset) for storage, offset in offsets.items()})
    order_of = {index: position for position, index in enumerate(wanted)}
    orders = list(dict.fromkeys(permutation.order for permutation in permuted.values()))
    before = {bound.values[value].storage: name for name, value in bound.before.items()}
    after = {bound.values[value].storage: name for name, value in bound.after.items()}

    def lay(value: BoundValue) -> LaidValue:
        lifetime = bound.storages[value.storage].lifetime
        offset = value.byte_offset
        source: Source
        key: int | str
        if lifetime == "weight":
            source, key = "weight", value.storage
        elif value.storage in permuted:
            permutation = permuted[value.storage]
            source, key = "moved", order_of[permutation.source]
            offset = orders.index(permutation.order)
        elif value.storage in before:
            source, key = "before", before[value.storage]
        elif value.storage in after:
            source, key = "after", after[value.storage]
        else:
            source, (key, first) = "segment", places[value.storage]
            offset += first
        return LaidValue(value.name, value.shape, value.dtype, source, key, offset, lifetime)

    values = tuple(lay(bound.by_index[index]) for index in wanted)
    layout = Layout(
        bound.entry.name,
        bound.symbols,
        values,
        tuple(
            LaidCall(
                call.step.site,
                call.step.operator,
                call.step.layer,
                tuple(order_of[index] for index in call.arguments),
                call.symbols,
            )
            for call in calls
        ),
    )
    used_before = _keys(values, "before")
    used_after = _keys(values, "after")
    state_bytes = sum(
        bound.storages[bound.values[values_of[name]].storage].nbytes
        for names, values_of in ((used_before, bound.before), (used_after, bound.after))
        for name in names
    )
    segment_bytes = sum(segment.nbytes for segment in segments.values())
    return KeptRun(
        layout=layout,
        segments=segments,
        before=used_before,
        after=used_after,
        weights=_keys(values, "weight"),
        orders=tuple(orders),
        segment_bytes=segment_bytes,
        nbytes=segment_bytes + state_bytes,
    )


def _with_sources(
    bound: BoundEntry, indices: Iterable[int], permuted: Mapping[str, PermutedStorage]
) -> tuple[int, ...]:
    """Values, followed by those that they are permutations of."""
    wanted = dict.fromkeys(indices)
    waiting = list(wanted)
    while waiting:
        permutation = permuted.get(bound.storage_of(waiting.pop()))
        if permutation is not None and permutation.source not in wanted:
            wanted[permutation.source] = None
            waiting.append(permutation.source)
    return tuple(wanted)


def _keys(values: Iterable[LaidValue], source: Source) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(v.key) for v in values if v.source == source))


def _keep_segment(
    segment: Segment, kept: set[str], index: int
) -> tuple[StoredSegment, dict[str, int]]:
    """The record of a segment, and the offsets of its kept storages."""
    tracked = segment.kind == "large"
    if kept == segment.offsets.keys():
        return StoredSegment(index, None, segment.nbytes, tracked), dict(segment.offsets)
    ends = [*list(segment.offsets.values())[1:], segment.nbytes]
    pieces: list[tuple[int, int]] = []
    offsets: dict[str, int] = {}
    total = 0
    for (storage, first), end in zip(segment.offsets.items(), ends, strict=True):
        if storage not in kept:
            continue
        offsets[storage] = total
        total += end - first
        if pieces and pieces[-1][1] == first:
            pieces[-1] = (pieces[-1][0], end)
        else:
            pieces.append((first, end))
    return StoredSegment(index, tuple(pieces), total, tracked), offsets
