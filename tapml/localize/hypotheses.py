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

from tapml.localize.evaluation import Array
from tapml.localize.fitted_constants import fitted_mistakes
from tapml.localize.mistakes import Mistake, of_addresses, of_operands, of_terms
from tapml.localize.scene import Scene, WrongOutput, is_float
from tapml.localize.steps import Step, Steps, inlined
from tapml.localize.trials import Sample, Trial, samples_of
from tapml.localize.unsafe_forms import as_compiled, of_unsafe_forms
from tapml.localize.wrong_arithmetic import of_constants, of_operations, of_results

# Of so many wrong elements one may be used up to find a number.
_ENOUGH_TO_FIT: Final = 4


@dataclass(frozen=True)
class Match:
    """A mistake whose result is the target's output.

    Attributes
    ----------
    position
        The step, from 0.
    mistake
        What it does.
    ratio, limit
        Largest distance from the target's output in units of (sensitivity + ulp), and the policy's
        limit for it.
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
                copied = replace(step, value=value)
                yield Mistake(words, copied, mistake.own_precision, general=True)


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
    samples = samples_of(outputs)
    return _Hunt(scene, steps, exact, samples).over(positions) if samples else []


class _Hunt:
    def __init__(
        self, scene: Scene, steps: Steps, exact: Mapping[str, Array], samples: Sequence[Sample]
    ) -> None:
        self._scene = scene
        self._steps = steps
        self._exact = exact
        self._samples = samples
        self._tried = 0
        # What is NaN on the device may be so by its dtype alone.
        self._narrow = any(
            not np.isfinite(sample.output.actual.reshape(-1)[sample.wrong]).all()
            for sample in samples
            if is_float(sample.output.dtype)
        )

    def over(self, positions: Sequence[int]) -> list[Match]:
        """Likely mistakes in all steps first; any number in place of a constant if none fits."""
        for makers in (self._likely, self._fitted):
            found: list[Match] = []
            for position in positions:
                for mistake in makers(position):
                    if self._scene.expired():
                        self._scene.note(f"time was up after {self._tried} mistakes")
                        return _ranked(found)
                    match = self._tested(position, mistake)
                    if match is not None:
                        found.append(match)
            if found:
                return _ranked(found)
        named = ", ".join(self._steps.steps[position].name for position in positions)
        self._scene.note(
            f"none of {self._tried} standard mistakes in {named} gives the target's output"
        )
        return []

    def _likely(self, position: int) -> Iterator[Mistake]:
        return mistakes_in(self._steps, position)

    def _fitted(self, position: int) -> Iterator[Mistake]:
        """Mistakes with a number that makes the worst finite element what it is."""
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
            trial = Trial(self._steps, self._exact, self._scene.symbols, position, step)
            return trial.value(output.name, flat)

        step = as_compiled(self._steps.steps[position])
        yield from fitted_mistakes(step, response, wanted)

    def _tested(self, position: int, mistake: Mistake) -> Match | None:
        self._tried += 1
        trial = Trial(
            self._steps,
            self._exact,
            self._scene.symbols,
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
    """Those that explain the right elements too come first, then those that say most."""
    return sorted(found, key=lambda m: (not m.everywhere, m.missed, m.mistake.general))
