"""Traces the first NaN or Inf of an output to its input element and hazard.

The paper found a GELU that was NaN for inputs beyond 45 (section IV-E) by hand. Here the element is
followed back through the operator's steps: which step produces it, by which hazard, from which
input element. A replay on the device confirms that changing that input cures it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml.diagnosis.counterfactual import Counterfactual
from tapml.diagnosis.dependence import InputElement, cone_of, heaviest_input, heaviest_term
from tapml.diagnosis.evaluation import Evaluation
from tapml.diagnosis.failure_context import FailureContext, WrongOutput, is_float
from tapml.diagnosis.hazards import Event, events_in
from tapml.diagnosis.inner_step import FoundStep
from tapml.diagnosis.steps import Steps
from tapml.failures.diagnosis import CARVED_DATA, NonFiniteOrigin
from tapml_targets.errors import LimitExceededError

# Most elements of one step that are searched for hazards.
_SEARCHED: Final = 256


@dataclass(frozen=True)
class _Odd:
    """The element to explain."""

    output: WrongOutput
    flat: int

    @property
    def value(self) -> float:
        return float(self.output.actual.reshape(-1)[self.flat])

    @property
    def expected(self) -> float:
        return float(self.output.expected.reshape(-1)[self.flat])

    @property
    def index(self) -> tuple[int, ...]:
        return tuple(int(i) for i in np.unravel_index(self.flat, self.output.actual.shape))

    @property
    def text(self) -> str:
        return element_text(self.output.name, self.index)


def element_text(tensor: str, index: tuple[int, ...]) -> str:
    """``input_0[0, 3]``."""
    return f"{tensor}[{', '.join(map(str, index))}]"


def find_origin(context: FailureContext, found: FoundStep | None) -> NonFiniteOrigin | None:
    """The origin of the first misplaced NaN or Inf; None if there is none.

    If float64 gives the same NaNs, the origin is the carved data.

    Raises
    ------
    DeviceLostError
        If the device is lost.
    """
    odd = _first_odd(context)
    if odd is not None:
        return _Trace(context, odd, found).origin()
    in_place = _first_in_place(context)
    return None if in_place is None else _Trace(context, in_place, None).carved()


def _first_odd(context: FailureContext) -> _Odd | None:
    """The first element that is NaN or Inf and finite in float64; NaN before Inf."""
    for test in (np.isnan, np.isinf):
        for output in context.outputs:
            if not is_float(output.dtype):
                continue
            odd = test(output.actual) & np.isfinite(output.expected) & output.wrong
            if odd.any():
                return _Odd(output, int(np.argmax(odd)))
    return None


def _first_in_place(context: FailureContext) -> _Odd | None:
    for output in context.outputs:
        if is_float(output.dtype):
            both = np.isnan(output.actual) & np.isnan(output.expected)
            if both.any():
                return _Odd(output, int(np.argmax(both)))
    return None


class _Trace:
    def __init__(self, context: FailureContext, odd: _Odd, found: FoundStep | None) -> None:
        self._context = context
        self._odd = odd
        self._found = found

    def origin(self) -> NonFiniteOrigin:
        """The origin of a NaN that float64 does not have."""
        context, odd = self._context, self._odd
        event: Event | None = None
        position: int | None = None
        element: InputElement | None = None
        if context.read is not None:
            position, event, element = self._traced(context.read.steps)
        asked = Counterfactual(context, odd.output.name, odd.flat)
        confirmed: bool | None = None
        if element is not None:
            confirmed = asked.cured_by([element])
        if not confirmed:
            searched = asked.search(self._candidates())
            if searched is not None:
                element, confirmed = searched, True
        if event is None and confirmed is False:
            # No input element causes it, but memory around the inputs may.
            element = None
        return self._described(position, event, element, confirmed)

    def carved(self) -> NonFiniteOrigin:
        context, odd = self._context, self._odd
        element = self._carved_element()
        if element is not None:
            origin = self._described(None, None, element, None)
            words = f"{self._input_text(element)} is so in the carved data already"
        else:
            position, event, element = (
                self._traced(context.read.steps) if context.read is not None else (None, None, None)
            )
            origin = self._described(position, event, element, None)
            words = (
                f"float64 meets {event.hazard}: {event.words}"
                if event
                else "its inputs are numbers"
            )
        sentence = (
            f"{odd.text} is NaN and so it is in float64: {words}; it is not the target's fault"
        )
        return replace(origin, hazard=CARVED_DATA, sentence=sentence)

    def _traced(self, steps: Steps) -> tuple[int | None, Event | None, InputElement | None]:
        """The step, the hazard and the input element, by following the element back."""
        try:
            position, event, made = self._event(steps)
            element = self._element(made, position, event)
        except LimitExceededError as error:
            self._context.note(str(error))
            return None, None, None
        return position, event, element

    def _event(self, steps: Steps) -> tuple[int | None, Event | None, Steps]:
        """The best hazard: that of the mistake found, of the step found, or any."""
        context, found = self._context, self._found
        made = steps
        if found is not None and found.match is not None:
            changed = list(steps.steps)
            changed[found.position] = found.match.mistake.step
            made = replace(steps, steps=tuple(changed))
        evaluation = self._evaluation(made)
        cone = cone_of(evaluation, self._odd.output.name, self._odd.flat)
        best: tuple[int, int, Event] | None = None
        for position, step in enumerate(made.steps):
            if step.writes not in cone or not self._looked_at(position):
                continue
            places = self._suspected(position, cone[step.writes])
            for event in events_in(evaluation, step, places):
                if best is None or event.rank < best[0]:
                    best = event.rank, position, event
        if best is not None:
            return best[1], best[2], made
        if found is not None and len(steps.steps) > 1:
            without = _Trace(context, self._odd, None)
            elsewhere = without._event(steps)
            if elsewhere[1] is not None:
                return elsewhere
        return (None if found is None else found.position), None, made

    def _looked_at(self, position: int) -> bool:
        """Whether a step may produce the NaN: the one found, or one that its mistake affects."""
        found = self._found
        if found is None:
            return True
        reaches = found.match is not None
        return position == found.position or (reaches and position > found.position)

    def _suspected(self, position: int, flat: NDArray[np.int64]) -> NDArray[np.int64]:
        """Elements of a step that the odd one depends on, wrong ones of its own kernel first."""
        found = self._found
        if found is not None and found.replay is not None and found.position == position:
            actual = found.replay.result.actual
            if actual and actual[0].dtype.kind == "f":
                odd = ~np.isfinite(actual[0].reshape(-1)[flat])
                if odd.any():
                    flat = flat[odd]
        return flat[:_SEARCHED]

    def _evaluation(self, steps: Steps) -> Evaluation:
        known = self._context.values
        return Evaluation(steps, known, self._context.symbols, own_precision=True)

    def _element(
        self, steps: Steps, position: int | None, event: Event | None
    ) -> InputElement | None:
        """The input element behind the hazard, or else behind the odd element."""
        evaluation = self._evaluation(self._context.read.steps if self._context.read else steps)
        if event is not None and position is not None:
            step = steps.steps[position]
            node: Any = event.node
            if event.operand >= 0:
                node = event.node.operands[event.operand]  # type: ignore[union-attr]
            return heaviest_input(self._evaluation(steps), node, event.places)
        maker = steps.maker(self._odd.output.name)
        if maker is None:
            return None
        step = steps.steps[maker]
        places = heaviest_term(evaluation, step, self._odd.flat)
        return heaviest_input(evaluation, step.value, places)

    def _carved_element(self) -> InputElement | None:
        """A NaN or Inf input element that the odd one depends on."""
        context = self._context
        cone: dict[str, NDArray[np.int64]] = {}
        if context.read is not None:
            try:
                steps = context.read.steps
                cone = cone_of(self._evaluation(steps), self._odd.output.name, self._odd.flat)
            except LimitExceededError:
                cone = {}
        for parameter in context.failure.operator.read:
            if not is_float(parameter.dtype):
                continue
            values = context.values[parameter.name].reshape(-1)
            flat = cone.get(parameter.name, np.arange(values.size))
            for test in (np.isnan, np.isinf):
                places = np.flatnonzero(test(values[flat]))
                if places.size:
                    return parameter.name, int(flat[places[0]])
        return None

    def _candidates(self) -> Iterator[InputElement]:
        """Input elements that the odd one may come from, the largest first."""
        context = self._context
        cone: dict[str, NDArray[np.int64]] | None = None
        if context.read is not None:
            try:
                steps = context.read.steps
                cone = cone_of(self._evaluation(steps), self._odd.output.name, self._odd.flat)
            except LimitExceededError:
                cone = None
        for parameter in context.failure.operator.read:
            if is_float(parameter.dtype):
                size = context.values[parameter.name].size
                flat = np.arange(size) if cone is None else cone.get(parameter.name, np.zeros(0))
                yield from ((parameter.name, int(each)) for each in flat)

    def _input(self, element: InputElement | None) -> tuple[str, tuple[int, ...], float]:
        if element is None:
            return "", (), math.nan
        name, flat = element
        values = self._context.values[name]
        index = tuple(int(i) for i in np.unravel_index(flat, values.shape))
        return name, index, float(values.reshape(-1)[flat])

    def _input_text(self, element: InputElement) -> str:
        name, index, value = self._input(element)
        return f"{element_text(name, index)} = {value:.6g}"

    def _described(
        self,
        position: int | None,
        event: Event | None,
        element: InputElement | None,
        confirmed: bool | None,
    ) -> NonFiniteOrigin:
        context, odd = self._context, self._odd
        step = ""
        sentence = f"{odd.text} is {odd.value} where float64 gives {odd.expected:.6g}"
        if position is not None and context.read is not None:
            steps = context.read.steps.steps
            step = steps[position].name
            sentence += f"; it arises in step {position + 1} of {len(steps)} ({step})"
        hazard = ""
        if event is not None:
            hazard = self._hazard(event)
            sentence += f", {hazard}: {event.words}"
        match = self._found.match if self._found is not None else None
        if match is not None and event is not None:
            sentence += f"; the output is what comes out where it {match.mistake.words}"
        if element is None and confirmed is False:
            sentence += (
                "; no single input element makes it so: the kernel may read memory that it was not "
                "given, or has not written"
            )
        if element is not None:
            sentence += f"; it comes from {self._input_text(element)}"
            if confirmed:
                sentence += ", without which the device gives a number there"
            elif confirmed is False:
                sentence += ", though changing that alone does not make it a number"
        name, index, value = self._input(element)
        return NonFiniteOrigin(
            output=odd.output.name,
            index=odd.index,
            value=odd.value,
            parameter=name,
            parameter_index=index,
            parameter_value=value,
            step=step,
            hazard=hazard,
            argument=math.nan if event is None else event.argument,
            sentence=sentence,
        )

    def _hazard(self, event: Event) -> str:
        """The hazard's name; for a function in an unsafe form, that of the function."""
        match = self._found.match if self._found is not None else None
        if match is not None and match.mistake.function in ("tanh", "sigmoid"):
            return f"{match.mistake.function} overflow"
        return event.hazard
