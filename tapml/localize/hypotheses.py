"""Which standard mistake gives the very output that the target gave.

A hypothesis is one mistake in one step (:mod:`tapml.localize.mistakes`). It is evaluated on a
sample of the wrong elements and of the right ones, and held against the target's output in the
policy's own units. What matches names the step and the mistake, even where the fault is only in the
fused kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tapml.compare.formats import ulp
from tapml.localize.evaluation import Array, Budget, Evaluation
from tapml.localize.mistakes import Mistake, of_addresses, of_operands, of_terms
from tapml.localize.scene import Scene, WrongOutput, is_float
from tapml.localize.steps import Steps, inlined
from tapml.localize.unsafe_forms import as_compiled, of_unsafe_forms
from tapml.localize.wrong_arithmetic import of_constants, of_operations, of_results
from tapml_targets.errors import LimitExceededError, UnsupportedOperatorError

_WRONG_SAMPLED: Final = 48
_RIGHT_SAMPLED: Final = 24
# An element tells something where its error is so many times what a match may be off by.
_TELLING: Final = 4.0
# One element in so many may be off otherwise: a shifted read leaves the tensor at its end.
_ONE_IN: Final = 12
_POINTS: Final = 1 << 21
_FEW: Final = 4


@dataclass(frozen=True)
class Match:
    """A mistake whose result is the target's output.

    Attributes
    ----------
    position
        The step, from 0.
    mistake
        What it does.
    ratio
        Largest distance from the target's output in units of (sensitivity + ulp).
    limit
        The policy's limit for it.
    everywhere
        Whether the elements that are right match as well; otherwise the mistake is made in some
        elements only.
    elements, missed
        How many wrong elements were looked at, and how many of them are otherwise.
    """

    position: int
    mistake: Mistake
    ratio: float
    limit: float
    everywhere: bool
    elements: int
    missed: int


@dataclass(frozen=True)
class _Sample:
    output: WrongOutput
    wrong: NDArray[np.int64]
    right: NDArray[np.int64]


def mistakes_in(steps: Steps, position: int) -> Iterator[Mistake]:
    """The mistakes that can be made in a step, the likeliest first, each different from the others.

    Unsafe forms come before operations left out: a NaN that both give is the form's.
    """
    step = steps.steps[position]
    seen = [(step.value, step.initial, step.dtype)]
    for mistake in chain(
        _alone(steps, position),
        _in_copies(steps, position),
    ):
        made = mistake.step
        if (made.value, made.initial, made.dtype) not in seen:
            seen.append((made.value, made.initial, made.dtype))
            yield mistake


def _alone(steps: Steps, position: int) -> Iterator[Mistake]:
    """Mistakes in the step itself."""
    step = steps.steps[position]
    written_out = as_compiled(step)
    yield from chain(
        of_terms(step),
        of_addresses(steps, step),
        of_unsafe_forms(step),
        of_operands(steps, step),
        of_operations(written_out),
        of_constants(written_out),
        of_results(step),
    )


def _in_copies(steps: Steps, position: int) -> Iterator[Mistake]:
    """Mistakes in the step's own copy of one before it, as a kernel has that inlines that one.

    A step that nobody else reads has no second copy: a mistake in it is one of its own.
    """
    step = steps.steps[position]
    for tensor in step.reads:
        maker = steps.maker(tensor)
        readers = [each for each in steps.steps if tensor in each.reads]
        if maker is None or len(readers) < 2 or steps.steps[maker].reduced:
            continue
        for mistake in _alone(steps, maker):
            if mistake.step.dtype == steps.steps[maker].dtype:
                value = inlined(step.value, mistake.step)
                words = f"{mistake.words} in its own copy of {steps.steps[maker].name}"
                yield Mistake(words, replace(step, value=value), mistake.own_precision)


def find_mistakes(
    scene: Scene,
    steps: Steps,
    exact: Mapping[str, Array],
    outputs: Sequence[WrongOutput],
    positions: Sequence[int],
) -> list[Match]:
    """The mistakes that explain `outputs`, the best first; empty, and a note, where none does.

    Parameters
    ----------
    scene
        Says when to stop.
    steps
        The operator's steps.
    exact
        Every tensor in float64.
    outputs
        What the target wrote.
    positions
        The steps to look at.
    """
    samples = [_sample(output) for output in outputs if output.wrong.any()]
    samples = [sample for sample in samples if sample.wrong.size]
    if not samples:
        return []
    invalid = any(
        not np.isfinite(s.output.actual.reshape(-1)[s.wrong]).all()
        for s in samples
        if is_float(s.output.dtype)
    )
    found: list[Match] = []
    tried = 0
    for position in positions:
        for mistake in mistakes_in(steps, position):
            if scene.expired():
                scene.note(f"time was up after {tried} mistakes had been tried")
                return _ranked(found)
            tried += 1
            trial = _Trial(scene, steps, exact, position, mistake, mistake.own_precision or invalid)
            match = trial.against(samples)
            if match is not None:
                found.append(match)
    if not found:
        named = ", ".join(steps.steps[position].name for position in positions)
        scene.note(f"none of {tried} standard mistakes in {named} gives the target's output")
    return _ranked(found)


def _ranked(found: list[Match]) -> list[Match]:
    """Those that explain the right elements too come first; otherwise the order of trial holds."""
    return sorted(found, key=lambda match: (not match.everywhere, match.missed))


def _sample(output: WrongOutput) -> _Sample:
    """Elements spread over the wrong ones whose error tells something, and over the right ones."""
    wrong = output.wrong.reshape(-1)
    if is_float(output.dtype):
        with np.errstate(all="ignore"):
            error = np.abs(output.actual - output.expected).reshape(-1)
            telling = ~(error < _TELLING * output.passing * output.scale.reshape(-1))
    else:
        telling = np.ones_like(wrong)
    return _Sample(
        output,
        _spread(np.flatnonzero(wrong & telling), _WRONG_SAMPLED),
        _spread(np.flatnonzero(~wrong), _RIGHT_SAMPLED),
    )


def _spread(places: NDArray[np.intp], count: int) -> NDArray[np.int64]:
    """At most `count` of `places`, both ends and evenly between."""
    if places.size > count:
        places = places[np.linspace(0, places.size - 1, count).round().astype(np.int64)]
    return places.astype(np.int64)


class _Trial:
    """One mistake against the samples."""

    def __init__(
        self,
        scene: Scene,
        steps: Steps,
        exact: Mapping[str, Array],
        position: int,
        mistake: Mistake,
        own_precision: bool,
    ) -> None:
        made = list(steps.steps)
        made[position] = mistake.step
        self._position = position
        self._mistake = mistake
        self._steps = replace(steps, steps=tuple(made))
        reached = {made[position].writes}
        for step in made[position + 1 :]:
            if reached & set(step.reads):
                reached.add(step.writes)
        self._reached = reached
        self._known = {name: values for name, values in exact.items() if name not in reached}
        self._symbols = scene.symbols
        self._own_precision = own_precision

    def against(self, samples: Sequence[_Sample]) -> Match | None:
        """The match, if it is one: every sampled output must be explained."""
        ratio, everywhere, elements, missed = 0.0, True, 0, 0
        for sample in samples:
            if sample.output.name not in self._reached:
                return None
            size = sample.wrong.size
            quick = sample.wrong[size // (2 * _FEW) :: max(1, size // _FEW)]
            if self._distance(sample, quick) is None:
                return None
            distance = self._distance(sample, sample.wrong)
            if distance is None:
                return None
            ratio = max(ratio, distance[0])
            missed += distance[1]
            elements += sample.wrong.size
            if sample.right.size and self._distance(sample, sample.right) is None:
                everywhere = False
        if not everywhere and not any(_telling_numbers(sample) for sample in samples):
            # NaN here and there is what many mistakes give.
            return None
        limit = max(sample.output.passing for sample in samples)
        return Match(self._position, self._mistake, ratio, limit, everywhere, elements, missed)

    def _distance(self, sample: _Sample, places: NDArray[np.int64]) -> tuple[float, int] | None:
        """Largest distance from the target at those of `places` that match, and how many do not.

        None where too few match.
        """
        output = sample.output
        places, values = self._values(output.name, places)
        if values is None:
            return None
        actual = output.actual.reshape(-1)[places]
        if not is_float(output.dtype):
            matching = np.asarray(values == actual)
            return (0.0, int((~matching).sum())) if _nearly_all(matching) else None
        expected = output.expected.reshape(-1)[places]
        with np.errstate(all="ignore"):
            scale = _scale(output, places, values, expected)
            ratios = np.abs(values - actual) / scale
            ratios[(values == actual) | (np.isnan(values) & np.isnan(actual))] = 0.0
            matching = ratios <= output.passing
        if not _nearly_all(matching):
            return None
        return float(ratios[matching].max(initial=0.0)), int((~matching).sum())

    def _values(
        self, tensor: str, places: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], Array | None]:
        """The mistake's result at `places`, or at a few of them where all are too much work."""
        evaluation = Evaluation(
            self._steps,
            self._known,
            self._symbols,
            own_precision=self._own_precision,
            budget=Budget(_POINTS),
        )
        try:
            return places, evaluation.at(tensor, places)
        except UnsupportedOperatorError:
            return places, None
        except LimitExceededError:
            if places.size <= _FEW:
                return places, None
            return self._values(tensor, _spread(places, _FEW))


def _nearly_all(matching: NDArray[np.bool_]) -> bool:
    return int((~matching).sum()) <= matching.size // _ONE_IN


def _telling_numbers(sample: _Sample) -> bool:
    """Whether the wrong elements are numbers, which no two mistakes have in common by chance."""
    actual = sample.output.actual.reshape(-1)[sample.wrong]
    return not is_float(sample.output.dtype) or bool(np.isfinite(actual).any())


def _scale(output: WrongOutput, places: NDArray[np.int64], values: Array, expected: Array) -> Array:
    """What the mistake's result may be off by: as the right one, grown where it is larger."""
    right = output.scale.reshape(-1)[places]
    finite = np.isfinite(values) & np.isfinite(expected)
    size = float(np.sqrt(np.mean(np.square(expected[finite])))) if finite.any() else 0.0
    mine = float(np.sqrt(np.mean(np.square(values[finite])))) if finite.any() else 0.0
    growth = max(1.0, mine / size) if size > 0 and np.isfinite(mine) else 1.0
    scale: Array = right * growth + ulp(np.where(np.isfinite(values), values, 0.0), output.dtype)
    return scale
