"""Any two settings against each other: the first is put together as if one device had computed it.

Two settings that both differ from one device may yet agree, as do all that average BatchNorm's
statistics alike; and two may differ in ways that one device, with its own rounding, hides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from tapml.distributed.judging import Limits, judge
from tapml.distributed.results import PairResult, Setting
from tapml.distributed.run_records import Key, Record, Run, Tensors


def put_together(run: Run, tensors: Tensors, orders: Mapping[Key, int]) -> Run:
    """A run of one rank with the tensors of all: shards and samples in their places.

    Of replicas it has the first rank's. What ranks hold in part only is left out. `orders` says
    when one device computed each tensor.
    """
    found: dict[Key, Record] = {}
    for key in run.keys:
        held = [records[key] for records in run.ranks if key in records]
        first = next((each for each in held if each.digest), held[0])
        first = replace(first, order=orders.get(key, first.order))
        if first.placement == "whole":
            found[key] = first
            continue
        whole = _whole(held, tensors)
        if whole is None:
            continue
        digest = f"whole:{len(tensors.arrays)}:{key}"
        tensors.add(digest, whole)
        rows = tuple(range(sum(len(set(each.rows)) for each in held)))
        by_rows = first.placement == "rows"
        found[key] = replace(
            first,
            digest=digest,
            placement="rows" if by_rows else "whole",
            rows=rows if by_rows else (),
            shape=(),
            offset=(),
            blocks=(),
        )
    return replace(run, ranks=(found,))


@dataclass(frozen=True)
class Comparable:
    """A setting's run: with those of the same `kind` it can be compared, within `limits`."""

    setting: Setting
    run: Run
    kind: object
    limits: Limits


def pairs_of(
    runs: Sequence[Comparable], tensors: Tensors, orders: Mapping[Key, int]
) -> list[PairResult]:
    """Compare every two settings whose runs are of one kind."""
    wholes = [put_together(each.run, tensors, orders) for each in runs]
    found = []
    for (number, one), (_, other) in combinations(enumerate(runs), 2):
        if one.kind != other.kind:
            continue
        judgement = judge(wholes[number], other.run, tensors, other.limits)
        first = next(iter(judgement.deviations), None)
        found.append(
            PairResult(
                first=one.setting.name,
                second=other.setting.name,
                differs_in=tuple(one.setting.differs_in(other.setting)),
                equal=first is None,
                phase="" if first is None else first.phase,
                tensor="" if first is None else first.tensor,
                ratio=None if first is None else first.ratio,
                error=judgement.worst if first is None else first.error,
            )
        )
    return found


def _whole(held: Sequence[Record], tensors: Tensors) -> NDArray[np.float64] | None:
    """The whole tensor of what all ranks hold; None if a part is missing or not known."""
    parts = [(each, tensors.get(each.digest)) for each in held if each.digest]
    known = [(each, value) for each, value in parts if value is not None]
    if len(known) < len(held) or any(each.placement == "blocks" for each in held):
        return None
    first, value = known[0]
    if first.placement == "rows":
        in_part = any(each.shape or each.summed for each, _ in known)
        return None if in_part else _by_rows(known)
    whole = np.full(first.shape, np.nan)
    filled = np.zeros(first.shape, bool)
    for each, value in known:
        if value.ndim != len(each.offset):
            return None
        ends = zip(each.offset, value.shape, strict=True)
        place = tuple(slice(start, start + size) for start, size in ends)
        whole[place], filled[place] = value, True
    return whole if bool(filled.all()) else None


def _by_rows(
    known: Sequence[tuple[Record, NDArray[np.float64]]],
) -> NDArray[np.float64] | None:
    count = 1 + max(row for each, _ in known for row in each.rows)
    first, value = known[0]
    if value.shape[0] % len(first.rows):
        return None
    times = value.shape[0] // len(first.rows)
    whole = np.full((count, times, *value.shape[1:]), np.nan)
    seen: set[int] = set()
    for each, part in known:
        if part.shape[0] != times * len(each.rows) or part.shape[1:] != value.shape[1:]:
            return None
        whole[list(each.rows)] = part.reshape(len(each.rows), times, *part.shape[1:])
        seen |= set(each.rows)
    return whole.reshape(count * times, *value.shape[1:]) if len(seen) == count else None
