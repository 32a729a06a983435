"""What an operator with a mistake in one step gives, held against what the target gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tapml.compare.formats import ulp
from tapml.localize.evaluation import Array, Budget, Evaluation
from tapml.localize.scene import WrongOutput, is_float
from tapml.localize.steps import Step, Steps
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
class Sample:
    """Flat indices of some wrong and some right elements of an output."""

    output: WrongOutput
    wrong: NDArray[np.int64]
    right: NDArray[np.int64]


@dataclass(frozen=True)
class Agreement:
    """How a mistake's result lies to the target's output.

    Attributes
    ----------
    ratio
        Largest distance in units of (sensitivity + ulp), over the wrong elements that match.
    everywhere
        Whether the elements that are right match as well.
    elements, missed
        How many wrong elements were looked at, and how many of them do not match.
    """

    ratio: float
    everywhere: bool
    elements: int
    missed: int


def samples_of(outputs: Sequence[WrongOutput]) -> list[Sample]:
    """Samples of the outputs that have wrong elements that tell something."""
    samples = [_sample(output) for output in outputs if output.wrong.any()]
    return [sample for sample in samples if sample.wrong.size]


def _sample(output: WrongOutput) -> Sample:
    """Elements spread over the wrong ones whose error tells something, and over the right ones."""
    wrong = output.wrong.reshape(-1)
    if is_float(output.dtype):
        with np.errstate(all="ignore"):
            error = np.abs(output.actual - output.expected).reshape(-1)
            telling = ~(error < _TELLING * output.passing * output.scale.reshape(-1))
    else:
        telling = np.ones_like(wrong)
    return Sample(
        output,
        _spread(np.flatnonzero(wrong & telling), _WRONG_SAMPLED),
        _spread(np.flatnonzero(~wrong), _RIGHT_SAMPLED),
    )


def _spread(places: NDArray[np.intp], count: int) -> NDArray[np.int64]:
    """At most `count` of `places`, both ends and evenly between."""
    if places.size > count:
        places = places[np.linspace(0, places.size - 1, count).round().astype(np.int64)]
    return places.astype(np.int64)


class Trial:
    """An operator with one step changed.

    Parameters
    ----------
    steps
        The operator as it should be.
    exact
        Every tensor in float64.
    symbols
        The shape symbols.
    position, step
        Which step is changed, and into what.
    own_precision
        Whether to round every number to its own dtype.
    """

    def __init__(
        self,
        steps: Steps,
        exact: Mapping[str, Array],
        symbols: Mapping[str, int],
        position: int,
        step: Step,
        *,
        own_precision: bool = False,
    ) -> None:
        made = list(steps.steps)
        made[position] = step
        self._steps = replace(steps, steps=tuple(made))
        reached = {made[position].writes}
        for later in made[position + 1 :]:
            if reached & set(later.reads):
                reached.add(later.writes)
        self._reached = reached
        self._known = {name: values for name, values in exact.items() if name not in reached}
        self._symbols = symbols
        self._own_precision = own_precision

    def value(self, tensor: str, flat: int) -> float | None:
        """One element; None where it cannot be computed."""
        _, values = self._values(tensor, np.array([flat], np.int64))
        return None if values is None else float(values[0])

    def against(self, samples: Sequence[Sample]) -> Agreement | None:
        """How it agrees with the target; None where it does not explain every sampled output."""
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
        return Agreement(ratio, everywhere, elements, missed)

    def _distance(self, sample: Sample, places: NDArray[np.int64]) -> tuple[float, int] | None:
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


def _telling_numbers(sample: Sample) -> bool:
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
