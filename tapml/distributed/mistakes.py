"""Standard mistakes, tried on the gradients of each rank's samples alone (one device, no ranks).

A rank's gradient is nearly always a combination of those *slice gradients*: their mean if all is
right, their sum if nobody divides, its own slice if nobody reduces. The combination that gives what
the ranks had names the mistake; the one that gives what one device had says what is right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Weights: TypeAlias = "tuple[float, ...]"
# Elements of all wrong tensors that a system of equations is solved on.
_EQUATIONS: Final = 4096
_ROUNDED_SHARE: Final = 0.99
# So many values at the largest magnitude were put there.
_SEVERAL: Final = 3


@dataclass(frozen=True)
class Mistake:
    """What reproduces a wrong gradient, and what to do."""

    text: str
    remedy: str


@dataclass(frozen=True)
class Observed:
    """A wrong gradient.

    Attributes
    ----------
    name
        The parameter.
    expected
        One device's; None if it has none.
    held
        By rank, the values and where they begin in the whole; no beginning for the whole itself.
    earlier
        One device's gradient of the step before; None in the first step.
    """

    name: str
    expected: Floats | None
    held: Mapping[int, tuple[Floats, tuple[int, ...]]]
    earlier: Floats | None = None


@dataclass(frozen=True)
class Slices:
    """Slice gradients by rank and parameter, and the error to accept.

    `samples` is how many each rank has, and `covers` whether the ranks together have every sample
    once; None if it is not known.
    """

    gradients: Sequence[Mapping[str, Floats]]
    samples: Sequence[int]
    tolerance: float
    covers: bool | None = True

    @property
    def world(self) -> int:
        """The number of ranks."""
        return len(self.gradients)

    def combine(self, name: str, weights: Weights, like: Floats) -> Floats:
        """The weighted sum of a parameter's slice gradients, in the shape of `like`."""
        total = np.zeros_like(like)
        for weight, gradients in zip(weights, self.gradients, strict=True):
            if weight and name in gradients:
                total += weight * gradients[name]
        return total


def find_mistake(wrong: Sequence[Observed], slices: Slices) -> Mistake | None:
    """The mistake that reproduces all wrong gradients; else the one that reproduces most; or None.

    With the second, the text says how many of them it reproduces.
    """
    wrong = [each for each in wrong if each.expected is not None and each.held]
    if not wrong:
        return None
    scale = max(_largest(each.expected) for each in wrong if each.expected is not None)
    found: list[tuple[int, Mistake]] = []
    for explain in (_by_combination, _by_values, _by_factors, _by_one_factor):
        for explained, mistake in explain(wrong, slices, scale):
            if explained == len(wrong):
                return mistake
            found.append((explained, mistake))
    if not found:
        return None
    explained, mistake = max(found, key=lambda each: each[0])
    share = f" ({explained} of {len(wrong)} wrong gradients)"
    return Mistake(mistake.text + share, mistake.remedy)


def _about_the_mean(wrong: Sequence[Observed], slices: Slices, scale: float) -> Mistake:
    """Why the mean over the ranks is wrong, from how slice gradients give one device's."""
    if slices.covers is False:
        return Mistake(
            "part() repeats samples or leaves some out",
            "let the parts of all ranks together hold every sample once",
        )
    world, total = slices.world, sum(slices.samples)

    def gives(weights: Weights) -> bool:
        return all(
            _near(slices.combine(each.name, weights, each.expected), each.expected, slices, scale)
            for each in wrong
            if each.expected is not None
        )

    # A rank without samples has no gradient, so a sum would explain it as well.
    if total and gives(tuple(count / total for count in slices.samples)):
        return Mistake(
            "the plain mean over ranks that have different numbers of samples",
            "weight each rank's loss by its samples, or give all ranks as many",
        )
    if gives((1.0,) * world):
        return Mistake(
            "gradients are averaged over the ranks, but the loss is a sum over samples",
            "average the loss over samples, or sum the gradients",
        )
    weights = _of_one_device(wrong, slices)
    if weights is not None and gives(weights):
        shown = ", ".join(f"{weight:.3g}" for weight in weights)
        return Mistake(
            f"the plain mean over ranks whose gradients one device weighs with {shown}: something "
            "is counted, or clipped, on each rank alone (tokens that are ignored, a norm)",
            "divide the loss by the count over all ranks; clip with the norm of the reduced "
            "gradient",
        )
    if any(_is_clipped(each.expected) for each in wrong):
        return Mistake(
            "gradients are clipped by value on each rank before they are reduced",
            "clip after the reduction",
        )
    return Mistake(
        "the mean over the ranks, of which one device's gradient is no combination: samples see "
        "each other in the loss or in the model (statistics of the batch, a contrastive loss)",
        "gather what the samples share over all ranks",
    )


def _of_one_device(wrong: Sequence[Observed], slices: Slices) -> Weights | None:
    """Weights of the slice gradients that give what one device has; None if none do."""
    whole = [
        Observed(each.name, each.expected, {0: (each.expected, ())})
        for each in wrong
        if each.expected is not None
    ]
    return _solve(whole, slices, 0)


def _is_clipped(values: Floats | None) -> bool:
    """Whether several values are the largest, to the bit: numbers that are computed are not."""
    if values is None or values.size < _SEVERAL:
        return False
    size = np.abs(values)
    return bool(size.max() > 0 and np.count_nonzero(size == size.max()) >= _SEVERAL)


def _by_combination(
    wrong: Sequence[Observed], slices: Slices, scale: float
) -> Iterator[tuple[int, Mistake]]:
    """Combinations with known weights."""
    world = slices.world

    def same(weights: Weights) -> Callable[[int], Weights]:
        return lambda _: weights

    def unit(rank: int) -> Weights:
        return tuple(float(each == rank) for each in range(world))

    candidates: list[tuple[Callable[[int], Weights], Mistake]] = [
        (
            same((1 / world,) * world),
            _about_the_mean(wrong, slices, scale),
        ),
        (
            same((1.0,) * world),
            Mistake(
                "gradients are summed over the ranks, not averaged",
                "divide by the number of ranks after the all-reduce (in the hook, or with "
                "ReduceOp.AVG)",
            ),
        ),
        (
            unit,
            Mistake(
                "gradients are not reduced: each rank keeps its own",
                "reduce them before optimizer.step(): look for no_sync(), ignored parameters, or "
                "a backward that bypasses the wrapped model",
            ),
        ),
        (
            same((1 / world**2,) * world),
            Mistake(
                "gradients are divided by the number of ranks twice",
                "divide once: the wrapper averages already",
            ),
        ),
        *(
            (
                same(unit(rank)),
                Mistake(
                    f"all ranks have the gradient of rank {rank} alone",
                    "reduce the gradients, do not broadcast them",
                ),
            )
            for rank in range(world)
        ),
    ]
    for weights_of, mistake in candidates:
        explained = sum(_explains(each, weights_of, slices, scale) for each in wrong)
        if explained:
            yield explained, mistake


def _by_values(
    wrong: Sequence[Observed], slices: Slices, scale: float
) -> Iterator[tuple[int, Mistake]]:
    """Mistakes that no combination shows: rounding, old and missing gradients, shards exchanged."""
    checks: list[tuple[Callable[[Observed], bool], Mistake]] = [
        (
            lambda each: any(not np.all(np.isfinite(held)) for held, _ in each.held.values()),
            Mistake(
                "values are NaN or infinite on the ranks alone",
                "look at the first wrong tensor for what divides, overflows or is not set there",
            ),
        ),
        (
            _is_zero,
            Mistake("the gradient is zero or missing", "find what detaches or clears it"),
        ),
        (
            lambda each: _is_earlier(each, slices, scale),
            Mistake(
                "the gradient is that of the step before",
                "wait for the reduction before optimizer.step()",
            ),
        ),
        (
            lambda each: _is_exchanged(each, slices, scale),
            Mistake(
                "ranks hold shards of each other", "let every rank take the shard of its own rank"
            ),
        ),
        *(
            (
                lambda each, rounds=rounds: _is_rounded(each, rounds),
                Mistake(
                    f"gradients are rounded to {name} on the way",
                    "reduce in float32, or expect this error",
                ),
            )
            for name, rounds in (("bfloat16", _to_bfloat16), ("float16", _to_float16))
        ),
    ]
    for check, mistake in checks:
        explained = sum(check(each) for each in wrong)
        if explained:
            yield explained, mistake


def _by_factors(
    wrong: Sequence[Observed], slices: Slices, scale: float
) -> Iterator[tuple[int, Mistake]]:
    """Any combination, solved for: a part of the ranks, or a factor for each rank."""
    ranks = sorted({rank for each in wrong for rank in each.held})
    solved = {rank: _solve(wrong, slices, rank) for rank in ranks}
    weights = {rank: found for rank, found in solved.items() if found is not None}
    if len(weights) < len(ranks):
        return
    explained = sum(_explains(each, weights.__getitem__, slices, scale) for each in wrong)
    if explained:
        yield explained, _named(weights, slices, _of_one_device(wrong, slices))


def _by_one_factor(
    wrong: Sequence[Observed], slices: Slices, scale: float
) -> Iterator[tuple[int, Mistake]]:
    """One factor for all gradients, where all ranks have the same samples (as a pipeline's)."""
    first, *others = slices.gradients
    if any(
        set(each) != set(first) or not all(np.array_equal(each[name], first[name]) for name in each)
        for each in others
    ):
        return
    pairs = [
        (held.ravel(), each.expected.ravel())
        for each in wrong
        if each.expected is not None
        for held, offset in each.held.values()
        if not offset and held.shape == each.expected.shape
    ]
    length = sum(float(wanted @ wanted) for _, wanted in pairs)
    if len(pairs) < len(wrong) or not length:
        return
    factor = sum(float(held @ wanted) for held, wanted in pairs) / length
    if all(_near(held, factor * wanted, slices, scale) for held, wanted in pairs):
        yield (
            len(wrong),
            Mistake(
                f"gradients are {factor:.3g} times one device's, on ranks that have the same "
                "samples",
                "return a mean over samples from loss(): a schedule averages its micro-batches",
            ),
        )


def _named(weights: Mapping[int, Weights], slices: Slices, one_device: Weights | None) -> Mistake:
    world = slices.world
    groups: dict[tuple[int, ...], None] = {}
    parts = []
    for rank, found in weights.items():
        taken = tuple(each for each, weight in enumerate(found) if abs(weight) > 1e-6)
        values = [found[each] for each in taken]
        level = bool(values) and max(values) - min(values) <= 1e-6 * max(map(abs, values))
        groups[taken] = None
        parts.append((rank, taken, values, level))
    if world > 1 and all(taken == (rank,) for rank, taken, _, _ in parts):
        own = ", ".join(f"{values[0]:.3g}" for _, _, values, _ in parts)
        return Mistake(
            f"gradients are not reduced: each rank keeps its own, times {own}",
            "reduce them before optimizer.step(), and scale them alike on all ranks",
        )
    if all(level and len(taken) < world for _, taken, _, level in parts):
        left_out = sorted(set(range(world)) - {each for group in groups for each in group})
        if len(groups) > 1:
            text = " and ".join(str(group) for group in groups)
            return Mistake(
                f"gradients are reduced within groups of ranks: {text}",
                "reduce over all ranks: look at the process group that is passed",
            )
        return Mistake(
            f"the gradient of rank{'s' * (len(left_out) > 1)} {_listed(left_out)} is left out",
            "let every rank take part in the reduction",
        )
    first = parts[0]
    scales = [values[0] * world for _, _, values, level in parts if level]
    if (
        len(groups) == 1
        and len(scales) == len(parts)
        and max(scales) - min(scales) > 1e-6 * max(map(abs, scales))
    ):
        return Mistake(
            "each rank scales the reduced gradient by a factor of its own "
            f"({', '.join(f'{each:.3g}' for each in scales)})",
            "clip or scale with one number on all ranks: reduce the norm first",
        )
    if len(groups) == 1 and first[3]:
        alone = one_device or (1 / world,) * world
        level = max(alone) - min(alone) <= slices.tolerance * max(map(abs, alone))
        if level and abs(alone[0] * world - 1) > slices.tolerance:
            return Mistake(
                f"gradients are {first[2][0] / alone[0]:.4g} times one device's, which are "
                f"{alone[0] * world:.4g} times their mean as well (clipped by their norm)",
                "clip with the same limit, and scale as on one device",
            )
        return Mistake(
            f"gradients are {first[2][0] * world:.4g} times their mean",
            "look for a second scaling, such as a loss divided by accumulation steps",
        )
    factors = ", ".join(f"{weight * world:.3g}" for weight in weights[first[0]])
    return Mistake(
        f"each rank's gradient has a factor of its own before the reduction ({factors})",
        "clip or scale after the reduction, with the norm of the whole gradient",
    )


def _solve(wrong: Sequence[Observed], slices: Slices, rank: int) -> Weights | None:
    """Weights of the slice gradients that give what a rank holds, by least squares."""
    columns: list[list[Floats]] = [[] for _ in range(slices.world)]
    values = []
    for each in wrong:
        if rank not in each.held or each.expected is None:
            continue
        held, offset = each.held[rank]
        values.append(held.reshape(-1))
        for other, gradients in enumerate(slices.gradients):
            whole = gradients.get(each.name)
            part = np.zeros_like(each.expected) if whole is None else whole
            columns[other].append(_part(part, held, offset).reshape(-1))
    if not values:
        return None
    matrix = np.stack([np.concatenate(each) for each in columns], axis=1)
    wanted = np.concatenate(values)
    if not np.all(np.isfinite(wanted)) or not np.all(np.isfinite(matrix)):
        return None
    if len(wanted) > _EQUATIONS:
        chosen = np.argsort(-np.abs(matrix).max(axis=1), kind="stable")[:_EQUATIONS]
        matrix, wanted = matrix[chosen], wanted[chosen]
    solution, _, independent, _ = np.linalg.lstsq(matrix, wanted, rcond=1e-10)
    return tuple(map(float, solution)) if independent == slices.world else None


def _explains(
    observed: Observed, weights_of: Callable[[int], Weights], slices: Slices, scale: float
) -> bool:
    """Whether a combination gives what every rank holds."""
    if observed.expected is None:
        return False
    for rank, (held, offset) in observed.held.items():
        combined = slices.combine(observed.name, weights_of(rank), observed.expected)
        if not _near(_part(combined, held, offset), held, slices, scale):
            return False
    return True


def _is_zero(observed: Observed) -> bool:
    return all(not held.any() for held, _ in observed.held.values() if held.size)


def _is_earlier(observed: Observed, slices: Slices, scale: float) -> bool:
    earlier = observed.earlier
    return earlier is not None and all(
        _near(_part(earlier, held, offset), held, slices, scale)
        for held, offset in observed.held.values()
    )


def _is_exchanged(observed: Observed, slices: Slices, scale: float) -> bool:
    """Whether what each rank holds is another rank's shard of what is right."""
    whole = observed.expected
    offsets = {offset for _, offset in observed.held.values() if offset}
    if whole is None or len(offsets) < 2:
        return False
    return all(
        any(
            (part := _part(whole, held, other)).shape == held.shape
            and _near(part, held, slices, scale)
            for other in offsets
        )
        for held, _ in observed.held.values()
    )


def _is_rounded(observed: Observed, rounds: Callable[[Floats], Floats]) -> bool:
    """Whether the values are of a short format, and near the right ones."""
    expected = observed.expected
    if expected is None:
        return False
    for held, offset in observed.held.values():
        want = _part(expected, held, offset)
        largest = max(_largest(want), 1e-30)
        exact = np.isclose(rounds(held), held, rtol=1e-12, atol=0)
        if held.size and (
            float(np.mean(exact)) < _ROUNDED_SHARE or _largest(held - want) > 0.05 * largest
        ):
            return False
    return True


def _to_bfloat16(values: Floats) -> Floats:
    with np.errstate(over="ignore"):
        bits = values.astype(np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def _to_float16(values: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float64)


def _part(whole: Floats, held: Floats, offset: tuple[int, ...]) -> Floats:
    if not offset:
        return whole
    ends = zip(offset, held.shape, strict=True)
    return whole[tuple(slice(start, start + size) for start, size in ends)]


def _near(got: Floats, want: Floats, slices: Slices, scale: float) -> bool:
    if got.shape != want.shape:
        return False
    if not want.size:
        return True
    allowed = slices.tolerance * max(_largest(want), 1e-6 * scale)
    finite = bool(np.all(np.isfinite(got))) and bool(np.all(np.isfinite(want)))
    return finite and _largest(got - want) <= allowed


def _largest(values: Floats | None) -> float:
    if values is None or not values.size:
        return 0.0
    found = float(np.max(np.abs(values)))
    return found if math.isfinite(found) else math.inf


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
