"""Compares the result of an operator with a mistake in one step with the target's output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tapml.diagnosis.evaluation import Array, Budget, Evaluation
from tapml.diagnosis.failure_context import FailureContext, WrongOutput, is_float
from tapml.diagnosis.mistakes import (
    Mistake,
    as_compiled,
    fitted_mistakes,
    of_addresses,
    of_constants,
    of_operands,
    of_operations,
    of_results,
    of_terms,
    of_unsafe_forms,
)
from tapml.diagnosis.steps import Step, Steps, inlined
from tapml_targets.errors import LimitExceededError, UnsupportedOperatorError
from tapml_targets.float_formats import ulp

_WRONG_SAMPLED: Final = 48
_RIGHT_SAMPLED: Final = 24
# An element is significant if its error is this many times the tolerance of a match.
_TELLING: Final = 4.0
# One element in this many may differ: a shifted read leaves the tensor at its end.
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
    """How well a mistake's result matches the target's output.

    Attributes
    ----------
    ratio
        Largest distance in units of (sensitivity + ulp), over the wrong elements that match.
    everywhere
        Whether the right elements match as well.
    elements, missed
        Number of wrong elements compared, and of those that do not match.
    """

    ratio: float
    everywhere: bool
    elements: int
    missed: int


def samples_of(outputs: Sequence[WrongOutput]) -> list[Sample]:
    """Samples of the outputs that have significant wrong elements."""
    samples = [_sample(output) for output in outputs if output.wrong.any()]
    return [sample for sample in samples if sample.wrong.size]


def _sample(output: WrongOutput) -> Sample:
    """Elements spread over the significant wrong ones, and over the right ones."""
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
    """At most `count` of `places`, evenly spread, both ends included."""
    if places.size > count:
        places = places[np.linspace(0, places.size - 1, count).round().astype(np.int64)]
    return places.astype(np.int64)


class Trial:
    """An operator with one step changed.

    Parameters
    ----------
    steps
        The correct operator.
    exact
        Every tensor in float64.
    symbols
        The shape symbols.
    position, step
        The changed step.
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
        """One element; None if it cannot be computed."""
        _, values = self._values(tensor, np.array([flat], np.int64))
        return None if values is None else float(values[0])

    def against(self, samples: Sequence[Sample]) -> Agreement | None:
        """Its agreement with the target; None if it does not explain every sampled output."""
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
            # Many mistakes give scattered NaNs.
            return None
        return Agreement(ratio, everywhere, elements, missed)

    def _distance(self, sample: Sample, places: NDArray[np.int64]) -> tuple[float, int] | None:
        """Largest distance from the target at the matching `places`, and how many do not match.

        None if too few match.
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
        """The mistake's result at `places`, or at a few of them if all are too much work."""
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
    """Whether the wrong elements are finite, so that two mistakes do not share them by chance."""
    actual = sample.output.actual.reshape(-1)[sample.wrong]
    return not is_float(sample.output.dtype) or bool(np.isfinite(actual).any())


def _scale(output: WrongOutput, places: NDArray[np.int64], values: Array, expected: Array) -> Array:
    """Tolerance of the mistake's result: that of the right one, scaled if the result is larger."""
    right = output.scale.reshape(-1)[places]
    finite = np.isfinite(values) & np.isfinite(expected)
    size = float(np.sqrt(np.mean(np.square(expected[finite])))) if finite.any() else 0.0
    mine = float(np.sqrt(np.mean(np.square(values[finite])))) if finite.any() else 0.0
    growth = max(1.0, mine / size) if size > 0 and np.isfinite(mine) else 1.0
    scale: Array = right * growth + ulp(np.where(np.isfinite(values), values, 0.0), output.dtype)
    return scale


# One of this many wrong elements may be used to fit a number.
_ENOUGH_TO_FIT: Final = 4


@dataclass(frozen=True)
class Match:
    """A mistake that reproduces the target's output.

    Attributes
    ----------
    position
        The step's number, from 0.
    mistake
        What it does.
    ratio, limit
        Largest distance from the target's output in units of (sensitivity + ulp), and the policy's
        limit for it.
    everywhere
        Whether the right elements match as well; otherwise the mistake affects only some elements.
    elements, missed
        Number of wrong elements compared, and of those that differ.
    """

    position: int
    mistake: Mistake
    ratio: float
    limit: float
    everywhere: bool
    elements: int
    missed: int


def mistakes_in(steps: Steps, position: int) -> Iterator[Mistake]:
    """The distinct mistakes that are possible in a step, the likeliest first.

    Unsafe forms come before omitted operations: a NaN that both give is the form's.
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
    """Mistakes in the step's inlined copy of an earlier step.

    A step with a single reader has no second copy: a mistake in it is its own.
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
                copied = replace(step, value=value)
                yield Mistake(words, copied, mistake.own_precision, general=True)


def find_mistakes(
    context: FailureContext,
    steps: Steps,
    exact: Mapping[str, Array],
    outputs: Sequence[WrongOutput],
    positions: Sequence[int],
) -> list[Match]:
    """The mistakes that explain `outputs`, the best first; empty, and a note, if none does.

    Parameters
    ----------
    context
        Says when to stop.
    steps
        The operator's steps.
    exact
        Every tensor in float64.
    outputs
        The target's outputs.
    positions
        The steps to examine.
    """
    samples = samples_of(outputs)
    return _Hunt(context, steps, exact, samples).over(positions) if samples else []


class _Hunt:
    def __init__(
        self,
        context: FailureContext,
        steps: Steps,
        exact: Mapping[str, Array],
        samples: Sequence[Sample],
    ) -> None:
        self._context = context
        self._steps = steps
        self._exact = exact
        self._samples = samples
        self._tried = 0
        # A NaN on the device may be due to the dtype alone.
        self._narrow = any(
            not np.isfinite(sample.output.actual.reshape(-1)[sample.wrong]).all()
            for sample in samples
            if is_float(sample.output.dtype)
        )

    def over(self, positions: Sequence[int]) -> list[Match]:
        """Likely mistakes in all steps first; if none fits, fit a number for each constant."""
        for makers in (self._likely, self._fitted):
            found: list[Match] = []
            for position in positions:
                for mistake in makers(position):
                    if self._context.expired():
                        self._context.note(f"time was up after {self._tried} mistakes")
                        return _ranked(found)
                    match = self._tested(position, mistake)
                    if match is not None:
                        found.append(match)
            if found:
                return _ranked(found)
        named = ", ".join(self._steps.steps[position].name for position in positions)
        self._context.note(
            f"none of {self._tried} standard mistakes in {named} gives the target's output"
        )
        return []

    def _likely(self, position: int) -> Iterator[Mistake]:
        return mistakes_in(self._steps, position)

    def _fitted(self, position: int) -> Iterator[Mistake]:
        """Mistakes with a number fitted to the worst finite element."""
        sample = self._samples[0]
        output = sample.output
        if not is_float(output.dtype) or sample.wrong.size < _ENOUGH_TO_FIT:
            return
        actual = output.actual.reshape(-1)[sample.wrong]
        with np.errstate(all="ignore"):
            error = np.abs(actual - output.expected.reshape(-1)[sample.wrong])
        if not np.isfinite(error).any():
            return
        worst = int(np.argmax(np.where(np.isfinite(error), error, -1.0)))
        flat, wanted = int(sample.wrong[worst]), float(actual[worst])

        def response(step: Step) -> float | None:
            trial = Trial(self._steps, self._exact, self._context.symbols, position, step)
            return trial.value(output.name, flat)

        step = as_compiled(self._steps.steps[position])
        yield from fitted_mistakes(step, response, wanted)

    def _tested(self, position: int, mistake: Mistake) -> Match | None:
        self._tried += 1
        trial = Trial(
            self._steps,
            self._exact,
            self._context.symbols,
            position,
            mistake.step,
            own_precision=mistake.own_precision or self._narrow,
        )
        agreement = trial.against(self._samples)
        if agreement is None:
            return None
        return Match(
            position,
            mistake,
            agreement.ratio,
            max(sample.output.passing for sample in self._samples),
            agreement.everywhere,
            agreement.elements,
            agreement.missed,
        )


def _ranked(found: list[Match]) -> list[Match]:
    """Rank those that explain the right elements too first, then the most specific ones."""
    return sorted(found, key=lambda m: (not m.everywhere, m.missed, m.mistake.general))
