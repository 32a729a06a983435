"""Which tensors each call site of a run takes and where they lie: one record for many runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tapml.carving.index import pack, unpack
from tapml.carving.movement import Movement, Order
from tapml.carving.storing import StoredSegment
from tapml.execute.binding import BoundEntry, BoundValue
from tapml.execute.program import Program
from tapml.execute.segments import Segment
from tapml_targets.errors import InputError

Source: TypeAlias = Literal["segment", "weight", "before", "after", "moved"]


@dataclass(frozen=True)
class LaidValue:
    """A tensor and where its bytes are.

    Attributes
    ----------
    name
        Its name in the plan.
    shape, dtype
        Concrete.
    source
        ``segment`` of the run's memory, ``weight``, state ``before`` or ``after`` the run, or
        ``moved``: the elements of another value in another order.
    key
        Index of the segment among those kept, the name of weight or state, or the index of the
        other value in the layout.
    byte_offset
        First byte there; for ``moved``, the number of the order.
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
    """A call site of a layout; `arguments` count the layout's values, in parameter order.

    `symbols` are the integers passed beside the tensors.
    """

    site: str
    operator: str
    layer: int | None
    arguments: tuple[int, ...]
    symbols: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Layout:
    """The call sites kept of one entry, for one set of shapes."""

    entry: str
    symbols: Mapping[str, int]
    values: tuple[LaidValue, ...]
    calls: tuple[LaidCall, ...]

    def pack(self) -> bytes:
        """As the index stores it."""
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
        """What :meth:`pack` packed."""
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
    """What is recorded of every run of one program; equal to itself only.

    Attributes
    ----------
    layout
        Its record.
    segments
        By the program's own segment index.
    before, after
        Names of the states that are kept as they were before and after the run.
    weights
        Names of the weights that the call sites read.
    orders
        The orders of values that are ``moved``, by number.
    segment_bytes
        Bytes of the segments.
    nbytes
        Bytes a run stores at most, state included.
    """

    layout: Layout
    segments: Mapping[int, StoredSegment]
    before: tuple[str, ...]
    after: tuple[str, ...]
    weights: tuple[str, ...]
    orders: tuple[Order, ...]
    segment_bytes: int
    nbytes: int


def keep_run(
    program: Program, positions: Iterable[int], movements: Mapping[str, Movement]
) -> KeptRun:
    """Lay out the call sites at `positions` of a program, and nothing else.

    `movements` are the storages that hold another value's elements, by name.
    """
    bound = program.bound
    calls = [bound.calls[position] for position in sorted(positions)]
    wanted = _with_sources(bound, (i for call in calls for i in call.arguments), movements)
    storages = {bound.storage_of(index) for index in wanted} - movements.keys()
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
    orders = list(dict.fromkeys(movement.order for movement in movements.values()))
    before = {bound.values[value].storage: name for name, value in bound.before.items()}
    after = {bound.values[value].storage: name for name, value in bound.after.items()}

    def lay(value: BoundValue) -> LaidValue:
        lifetime = bound.storages[value.storage].lifetime
        offset = value.byte_offset
        source: Source
        key: int | str
        if lifetime == "weight":
            source, key = "weight", value.storage
        elif value.storage in movements:
            movement = movements[value.storage]
            source, key = "moved", order_of[movement.source]
            offset = orders.index(movement.order)
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
    bound: BoundEntry, indices: Iterable[int], movements: Mapping[str, Movement]
) -> tuple[int, ...]:
    """Values and, behind them, those whose elements they hold."""
    wanted = dict.fromkeys(indices)
    waiting = list(wanted)
    while waiting:
        movement = movements.get(bound.storage_of(waiting.pop()))
        if movement is not None and movement.source not in wanted:
            wanted[movement.source] = None
            waiting.append(movement.source)
    return tuple(wanted)


def _keys(values: Iterable[LaidValue], source: Source) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(v.key) for v in values if v.source == source))


def _keep_segment(
    segment: Segment, kept: set[str], index: int
) -> tuple[StoredSegment, dict[str, int]]:
    """The record of a segment, and where the kept storages begin in what is stored of it."""
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
