"""Compares a distributed run with the reference, tensor by tensor, in dataflow order.

An error is the largest difference over the tensor's largest value. Gradients that are zero in exact
arithmetic (a bias before a softmax) consist of rounding only, so the scale has a floor: a few
rounding errors of the largest tensor of the phase.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml.distributed.results import (
    PHASES,
    PUBLISHED_ABSOLUTE,
    PUBLISHED_RELATIVE,
    Deviation,
    Place,
)
from tapml.distributed.run_records import Key, Record, Run, Tensors
from tapml.verdicts.metrics import measure

INPUT: Final = "(input)"
# Rounding errors of the phase's largest tensor that a small tensor may have.
_ROUNDINGS: Final = 64
# Of the weights, in a gradient that is known from the difference of two of them.
_DIFFERENCE: Final = 2
_ALIGNED: Final = ("forward", "prediction", "hidden")


@dataclass(frozen=True)
class Limits:
    """How much error is allowed.

    Attributes
    ----------
    base
        For every tensor.
    epsilon
        Unit roundoff of the runs' precision.
    by_tensor
        Larger limits of single tensors, from measured sensitivities.
    """

    base: float
    epsilon: float
    by_tensor: Mapping[Key, float] = field(default_factory=dict)

    def of(self, key: Key) -> float:
        """The limit of one tensor."""
        return max(self.base, self.by_tensor.get(key, 0.0))


FLOAT64: Final = Limits(1e-9, 2.0**-52)
"""Bugs that were seen are 1e-6 and more, clean runs below 1e-13."""
FLOAT32: Final = Limits(1e-5, 2.0**-23)


@dataclass(frozen=True)
class Judgement:
    """What a comparison found.

    Attributes
    ----------
    deviations
        Tensors beyond their limits, in dataflow order.
    compared
        Number of tensors compared, by phase.
    not_compared
        Names with reasons.
    unknown
        Whether replicas differ from rank 0's in values that were not sent.
    worst
        The largest error of all tensors.
    errors
        The error of each tensor.
    """

    deviations: tuple[Deviation, ...]
    compared: dict[str, int]
    not_compared: dict[str, str]
    unknown: bool
    worst: float
    errors: dict[Key, float]


@dataclass
class _Judge:
    reference: Run
    run: Run
    tensors: Tensors
    limits: Limits

    def __post_init__(self) -> None:
        self.wanted = self.reference.ranks[0]
        self.samples = max(
            (len(each.rows) for each in self.wanted.values() if each.placement == "rows"), default=0
        )
        self.floors: dict[tuple[str, int, str], float] = {}
        for key, record in self.wanted.items():
            # Inputs may be large numbers of rows; what is computed from them is not.
            if not _is_input(key[2]):
                group, largest = _group(key), self.tensors.largest(record.digest)
                self.floors[group] = max(self.floors.get(group, 0.0), largest)
        self.unknown = False
        self.not_compared = dict(self.run.not_compared)

    def pairs(self, key: Key) -> Iterator[tuple[int, Any, Any]]:
        """(rank, expected, actual) of every rank that holds a part; None for no tensor."""
        record = self.wanted[key]
        whole = self.tensors.get(record.digest) if record.digest else None
        for rank, records in enumerate(self.run.ranks):
            own = records.get(key)
            if own is None:
                continue
            actual = self.tensors.get(own.digest) if own.digest else None
            if own.digest and actual is None:
                # A replica that differs from rank 0's, in a run that sends digests.
                self.unknown = True
                yield rank, whole, math.nan
                continue
            if own.summed:
                actual = self.sum_of(key, own.summed)
            yield rank, self.expected(record, own, whole, actual), actual

    def by_calls(self, key: Key) -> bool:
        """Whether predictions are those of the last step's inputs, and not of the batch."""
        return key[0] == "prediction" and INPUT in self.wanted[key].inputs

    def sum_of(self, key: Key, ranks: tuple[int, ...]) -> NDArray[np.float64] | None:
        """The sum of what ranks have; None if one lacks it, or has another shape."""
        held = [self.run.ranks[rank].get(key) for rank in ranks]
        values = [None if each is None else self.tensors.get(each.digest) for each in held]
        found = [each for each in values if each is not None]
        if len(found) < len(ranks) or len({each.shape for each in found}) > 1:
            return None
        total: NDArray[np.float64] = np.sum(found, axis=0)
        return total

    def expected(
        self,
        record: Record,
        own: Record,
        whole: NDArray[np.float64] | None,
        actual: NDArray[np.float64] | None,
    ) -> NDArray[np.float64] | None:
        """The reference's part that a rank should hold."""
        if whole is None or actual is None or own.placement == "whole":
            return whole
        if own.placement in ("shard", "blocks"):
            if not actual.size:
                return actual  # More ranks than rows; that nothing is lost is checked apart.
            return _cut(whole, own, actual.shape) if own.shape == whole.shape else whole
        count, shape = len(record.rows), own.shape or actual.shape
        if not count or whole.shape[0] % count or whole.shape[1:] != shape[1:]:
            return None
        each = whole.shape[0] // count
        if shape[0] != each * len(own.rows) or max(own.rows) >= count:
            return None
        # Several rows per sample: the samples' positions, say, made one dimension with them.
        by_sample = whole.reshape(count, each, *whole.shape[1:])
        mine = by_sample[list(own.rows)].reshape(shape)
        return _cut(mine, own, actual.shape) if own.shape else mine

    def compare(self, key: Key) -> Deviation | float | None:
        """A deviation, the error within the limit, or None if it cannot be compared."""
        phase, step, name = key
        limit = self.limits.of(key)
        errors: dict[int, float] = {}
        held: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
        note = ""
        for rank, expected, actual in self.pairs(key):
            if phase in _ALIGNED and expected is None:
                self.not_compared[name] = self.why_not(key, actual)
                return None
            if isinstance(actual, float):
                errors[rank] = math.inf
                continue
            if expected is None and actual is None:
                errors[rank] = 0.0
                continue
            like = actual if expected is None else expected
            want = np.zeros_like(like) if expected is None else expected
            got = np.zeros_like(like) if actual is None else actual
            if want.shape != got.shape:
                errors[rank] = math.inf
                note = f"shape {got.shape} where one device has {want.shape}"
                continue
            errors[rank] = self.error(key, want, got, limit, self.run.ranks[rank][key].weight)
            if actual is None and errors[rank] > limit:
                note = "it has none here"
            if expected is None and errors[rank] > limit:
                note = "one device has none"
            held.append((want, got))
        if not errors:
            if phase in _ALIGNED:
                self.not_compared.setdefault(name, "no rank computed it as one device did")
            if name in self.not_compared:
                return None
            return Deviation(
                phase=phase,
                step=step,
                tensor=name,
                ranks=tuple(range(len(self.run.ranks))),
                error=math.inf,
                limit=limit,
                note="no rank has it",
            )
        lost = self.lost(key)
        if lost:
            errors, note = dict.fromkeys(errors, math.inf), lost
        worst = max(errors.values())
        wrong = tuple(rank for rank, error in errors.items() if error > limit)
        if not wrong:
            return worst
        wanted = sum(_square(want) for want, _ in held)
        had = sum(_square(got) for _, got in held)
        ratio = math.sqrt(had / wanted) if wanted and not self.unknown else None
        return Deviation(
            phase=phase,
            step=step,
            tensor=name,
            ranks=wrong,
            error=worst,
            limit=limit,
            ratio=ratio,
            note=note,
        )

    def why_not(self, key: Key, actual: Any) -> str:
        """Why what a rank has is no part of the reference's."""
        whole = self.tensors.get(self.wanted[key].digest)
        if (
            whole is None
            or not isinstance(actual, np.ndarray)
            or whole.shape[1:] == actual.shape[1:]
        ):
            return "its first dimension does not count samples"
        return (
            f"a rank has the shape {actual.shape}, one device {whole.shape}: no DTensor says where "
            "the part lies"
        )

    def lost(self, key: Key) -> str:
        """What the shards of all ranks lack of the whole; empty if nothing."""
        held = {
            own.blocks or own.offset: (own.shape, self.tensors.get(own.digest))
            for records in self.run.ranks
            if (own := records.get(key)) is not None
            and own.placement in ("shard", "blocks")
            and own.digest
        }
        if not held:
            return ""
        count = sum(0 if value is None else value.size for _, value in held.values())
        size = max(math.prod(shape) for shape, _ in held.values())
        return "" if count >= size else f"the shards hold {count} of {size} elements"

    def error(
        self,
        key: Key,
        want: NDArray[np.float64],
        got: NDArray[np.float64],
        limit: float,
        weight: float,
    ) -> float:
        """The largest difference over the scale; infinite if NaN or Inf are not in place.

        `weight` is the largest number whose rounding is in what the rank has.
        """
        both = np.isfinite(want) & np.isfinite(got)
        same = (want == got) | (np.isnan(want) & np.isnan(got))
        if bool(np.any(~both & ~same)):
            return math.inf
        difference = float(np.max(np.abs(got - want), where=both, initial=0.0))
        if difference == 0.0:
            return 0.0
        record = self.wanted[key]
        roundings = _ROUNDINGS * self.limits.epsilon / limit
        floor = max(self.floors.get(_group(key), 0.0), record.weight) * roundings
        floor = max(floor, weight * _DIFFERENCE * self.limits.epsilon / limit)
        # The scale of the whole tensor, not of a rank's part of it.
        scale = max(self.tensors.largest(record.digest), floor)
        return difference / scale if scale else math.inf


def judge(reference: Run, run: Run, tensors: Tensors, limits: Limits) -> Judgement:
    """Compare all tensors of a run with the reference's."""
    judging = _Judge(reference, run, tensors, limits)
    deviations: list[Deviation] = []
    compared: Counter[str] = Counter()
    errors: dict[Key, float] = {}
    aligned = _aligned(judging)
    for key in _in_dataflow_order(reference):
        phase, _, name = key
        if _is_input(name):
            continue
        if not aligned and (phase == "forward" or judging.by_calls(key)):
            what = "hidden states" if phase == "forward" else name
            judging.not_compared[what] = "the model's inputs are not part()'s samples"
            continue
        found = judging.compare(key)
        if found is None:
            continue
        compared[phase] += 1
        if isinstance(found, Deviation):
            deviations.append(found)
            errors[key] = found.error
        else:
            errors[key] = found
    deviations += _unexpected(judging)
    if _made_up_for(judging, deviations, errors):
        for each in deviations:
            judging.not_compared[f"gradient of {each.tensor}"] = (
                "it differs, but what the ranks do with it gives the same update"
            )
            del errors["gradient", each.step, each.tensor]
        deviations.clear()
    order = {phase: place for place, phase in enumerate(PHASES)}
    deviations.sort(key=lambda each: (_late(each), each.step, order[each.phase]))
    return Judgement(
        tuple(deviations),
        dict(compared),
        judging.not_compared,
        judging.unknown,
        max(errors.values(), default=0.0),
        errors,
    )


def _made_up_for(judging: _Judge, deviations: list[Deviation], errors: dict[Key, float]) -> bool:
    """Whether only gradients differ, and the updates, which are not zero, are equal.

    So it is if weights are averaged after the step, or the learning rate is divided instead.
    """
    for each in deviations:
        key: Key = ("update", each.step, each.tensor)
        if each.phase != "gradient" or key not in errors:
            return False
        update = judging.tensors.get(judging.wanted[key].digest)
        if update is None or not np.any(update):
            return False
    return bool(deviations)


def _is_input(name: str) -> bool:
    return name == INPUT or name.startswith(f"{INPUT}[")


def published_verdict(reference: Run, run: Run, tensors: Tensors) -> str | None:
    """The paper's verdict on predictions (section IV); None if there are none to compare."""
    judging = _Judge(reference, run, tensors, FLOAT32)
    verdicts = []
    aligned = _aligned(judging)
    for key in judging.wanted:
        if key[0] != "prediction" or (judging.by_calls(key) and not aligned):
            continue
        for _, expected, actual in judging.pairs(key):
            if isinstance(actual, np.ndarray) and expected is not None:
                allowed = PUBLISHED_ABSOLUTE + PUBLISHED_RELATIVE * np.abs(actual)
                with np.errstate(invalid="ignore"):
                    near = (np.abs(actual - expected) <= allowed) | (actual == expected)
                verdicts.append(bool(np.all(near)))
    if not verdicts:
        return None
    return "equal" if all(verdicts) else "inconsistent"


def mean_distances(reference: Run, run: Run, tensors: Tensors, phase: str) -> dict[str, float]:
    """The mean absolute distance of each tensor of a phase that the ranks have, by name."""
    judging = _Judge(reference, run, tensors, FLOAT32)
    found = {}
    for key in judging.wanted:
        if key[0] != phase:
            continue
        total, count = 0.0, 0
        for _, expected, actual in judging.pairs(key):
            if isinstance(actual, np.ndarray) and expected is not None:
                total += float(np.sum(np.abs(actual - expected)))
                count += actual.size
        if count:
            found[key[2]] = total / count
    return found


def not_finite(run: Run, tensors: Tensors) -> Key | None:
    """The first tensor of a reference with NaN or Inf; masks in hidden states may have them."""
    for key in _in_dataflow_order(run):
        record = run.ranks[0][key]
        value = tensors.get(record.digest) if record.digest else None
        if key[0] != "forward" and value is not None and not bool(np.all(np.isfinite(value))):
            return key
    return None


def worst_place(
    deviation: Deviation, reference: Run, run: Run, tensors: Tensors, dtype: str
) -> Place | None:
    """The worst element of a deviation on its first wrong rank."""
    key = deviation.phase, deviation.step, deviation.tensor
    judging = _Judge(reference, run, tensors, FLOAT64 if dtype == "float64" else FLOAT32)
    if key not in judging.wanted:
        return None
    for rank, expected, actual in judging.pairs(key):
        if rank != deviation.ranks[0] or not isinstance(actual, np.ndarray):
            continue
        want = np.zeros_like(actual) if expected is None else expected
        if want.shape != actual.shape or not want.size:
            return None
        metrics = measure(want, actual, dtype)
        scale = max(_largest(want), np.finfo(np.float64).tiny)
        with np.errstate(invalid="ignore"):
            wrong = ~(np.abs(actual - want) <= deviation.limit * scale)
        return Place(
            rank=rank,
            index=metrics.worst_index,
            expected=metrics.worst_expected,
            actual=metrics.worst_actual,
            max_absolute=metrics.max_absolute,
            wrong_elements=int(wrong.sum()),
            elements=int(want.size),
        )
    return None


def _aligned(judging: _Judge) -> bool:
    """Whether every rank's model got the samples that it was given: hidden states match by them."""
    for key in judging.wanted:
        if key[0] == "forward" and _is_input(key[2]):
            found = judging.compare(key)
            if isinstance(found, Deviation):
                return False
    return True


def _unexpected(judging: _Judge) -> Iterator[Deviation]:
    """Tensors of the ranks that one device lacks."""
    for key in judging.run.keys:
        phase, step, name = key
        if key in judging.wanted or phase in _ALIGNED:
            continue
        holders = tuple(
            rank
            for rank, records in enumerate(judging.run.ranks)
            if key in records and records[key].digest
        )
        if holders:
            yield Deviation(
                phase=phase,
                step=step,
                tensor=name,
                ranks=holders,
                error=math.inf,
                limit=judging.limits.of(key),
                note="one device has no such tensor",
            )


def _in_dataflow_order(run: Run) -> list[Key]:
    order = {phase: place for place, phase in enumerate(PHASES)}
    records = run.ranks[0]

    def place(key: Key) -> tuple[bool, int, int, int]:
        return key[0] == "prediction", key[1], order[key[0]], records[key].order

    return sorted(records, key=place)


def _late(deviation: Deviation) -> bool:
    return deviation.phase == "prediction"


def _group(key: Key) -> tuple[str, int, str]:
    """Tensors that share a floor: a phase of a step, by kind of the optimizer's state."""
    phase, step, name = key
    return phase, step, name.rpartition(" ")[2] if phase == "state" else ""


def _cut(whole: NDArray[np.float64], own: Record, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """The block of the whole that a rank holds, or its blocks, flat."""
    found = []
    for offset, size in own.blocks or ((own.offset, shape),):
        ends = zip(offset, size, strict=True)
        found.append(whole[tuple(slice(start, start + length) for start, length in ends)])
    return np.concatenate([each.ravel() for each in found]) if own.blocks else found[0]


def _square(value: NDArray[np.float64]) -> float:
    """The square of the norm of what is finite."""
    finite = value[np.isfinite(value)]
    return float(np.dot(finite, finite))


def _largest(value: NDArray[np.float64]) -> float:
    return float(np.max(np.abs(value), where=np.isfinite(value), initial=0.0))
