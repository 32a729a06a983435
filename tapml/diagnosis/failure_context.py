"""One failing test with everything that localization uses, computed on demand."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tapml.compiler.twin import compile_twins
from tapml.diagnosis.cutting import opened_operator
from tapml.diagnosis.evaluation import MOST_POINTS, Evaluation
from tapml.diagnosis.reading import ReadOperator, read_steps
from tapml.diagnosis.steps import Step, extent_of
from tapml.plan.graph_plan import Operator
from tapml.replaying.failure import Failure
from tapml.verdicts.discrete import wrong_elements
from tapml.verdicts.expectation import Expectation, float_errors
from tapml.verdicts.judge import choose_limits
from tapml_rpc.client import Session
from tapml_targets.dtype import dtype as lookup
from tapml_targets.errors import UnsupportedOperatorError
from tapml_targets.expression import bind_shape
from tapml_targets.float_formats import as_float64
from tapml_targets.library import Library

Array = NDArray[Any]
Compile: TypeAlias = Callable[[Operator, Mapping[str, str]], Library]


@dataclass(frozen=True)
class WrongOutput:
    """An output of the failing test.

    Attributes
    ----------
    name, dtype
        The parameter.
    expected, actual
        float64 for floating-point outputs.
    scale
        Sensitivity + ulp per element; ones for integers.
    wrong
        Mask of the elements that the policy does not let pass.
    passing
        The policy's limit on error / scale.
    """

    name: str
    dtype: str
    expected: Array
    actual: Array
    scale: Array
    wrong: NDArray[np.bool_]
    passing: float


@dataclass
class FailureContext:
    """A failing test, its device, and access to the inside of the operator."""

    failure: Failure
    session: Session
    compile: Compile
    deadline: float
    notes: list[str] = field(default_factory=list)

    def expired(self) -> bool:
        """Whether the time is used up."""
        return time.monotonic() > self.deadline

    def note(self, text: str) -> None:
        """Record what was excluded or could not be done; each once."""
        if text not in self.notes:
            self.notes.append(text)

    @cached_property
    def inputs(self) -> dict[str, Array]:
        """Carved inputs by parameter, raw bits."""
        names = [parameter.name for parameter in self.failure.operator.read]
        return dict(zip(names, self.failure.result.case.read_inputs(), strict=True))

    @cached_property
    def values(self) -> dict[str, Array]:
        """Carved inputs by parameter, floating point as float64."""
        return {
            parameter.name: _wide(self.inputs[parameter.name], parameter.dtype)
            for parameter in self.failure.operator.read
        }

    @cached_property
    def symbols(self) -> dict[str, int]:
        """The shape symbols and integers of this test."""
        known = dict(self.failure.result.case.symbols)
        for parameter in self.failure.operator.read:
            bind_shape(parameter.shape, self.inputs[parameter.name].shape, known, parameter.name)
        for parameter, output in zip(
            self.failure.operator.written, self.failure.expectation.outputs, strict=True
        ):
            bind_shape(parameter.shape, output.values.shape, known, parameter.name)
        return known

    @cached_property
    def outputs(self) -> tuple[WrongOutput, ...]:
        """Actual and expected outputs; empty if nothing was read back."""
        failure = self.failure
        names = [output.name for output in failure.expectation.outputs]
        return wrong_outputs(failure, failure.expectation, failure.result.actual, names)

    @cached_property
    def read(self) -> ReadOperator | None:
        """The operator's steps; None, and a note, if they cannot be read."""
        operator = self.failure.operator
        if not operator.function:
            self.note("the operator's function is not at hand, so there are no steps to look into")
            return None
        try:
            return read_steps(operator)
        except UnsupportedOperatorError as error:
            self.note(str(error))
            return None

    @cached_property
    def exact(self) -> dict[str, Array]:
        """Every tensor in float64: inputs, intermediate ones and outputs."""
        known = dict(self.values)
        known |= {want.name: want.values for want in self.failure.expectation.outputs}
        read = self.read
        if read is None:
            return known
        steps = [step for step in read.steps.steps if step.writes not in known]
        if self.work_of(steps) > MOST_POINTS:
            return {**known, **self._exact_by_twin(read)}
        for step in steps:
            known[step.writes] = whole(Evaluation(read.steps, known, self.symbols), step.writes)
        return known

    def work_of(self, steps: Sequence[Step]) -> int:
        """Number of terms in a full evaluation of steps."""
        return sum(
            math.prod(extent_of(axis.extent, self.symbols) for axis in step.axes) for step in steps
        )

    def _exact_by_twin(self, read: ReadOperator) -> dict[str, Array]:
        """The same from compiled code, for operators too large to evaluate here."""
        cut = opened_operator(read)
        shapes = Evaluation(read.steps, self.values, self.symbols)
        found = {
            name: np.zeros(
                shapes.shape(name), "float64" if is_float(dtype) else lookup(dtype).numpy_name
            )
            for name, dtype in ((name, read.steps.tensors[name].dtype) for name in cut.writes)
        }
        given = [np.asarray(self.values[name], order="C") for name in cut.reads]
        compile_twins([cut.operator])[cut.operator.name](
            *given, *found.values(), symbols=self.symbols
        )
        return found


def wrong_outputs(
    failure: Failure, expectation: Expectation, actual: Sequence[Array], names: Sequence[str]
) -> tuple[WrongOutput, ...]:
    """Outputs that were read back, under `names`, with the elements that the policy rejects."""
    if not actual:
        return ()
    outputs = []
    for name, want, raw in zip(names, expectation.outputs, actual, strict=True):
        if want.is_float:
            got = as_float64(raw, want.dtype)
            chosen = choose_limits(failure.policy, failure.operator.name, want, expectation.terms)
            passing = chosen.limits.passing
            wrong = float_errors(want, got) > passing
            outputs.append(
                WrongOutput(name, want.dtype, want.values, got, want.scale, wrong, passing)
            )
        else:
            wrong, ones = wrong_elements(want, raw), np.ones(raw.shape)
            outputs.append(WrongOutput(name, want.dtype, want.values, raw, ones, wrong, 0.0))
    return tuple(outputs)


def whole(evaluation: Evaluation, tensor: str) -> Array:
    """All elements of a tensor."""
    shape = evaluation.shape(tensor)
    return evaluation.at(tensor, np.arange(int(np.prod(shape)), dtype=np.int64)).reshape(shape)


def is_float(dtype: str) -> bool:
    """Whether `dtype` is floating point."""
    return lookup(dtype).is_float


def _wide(raw: Array, dtype: str) -> Array:
    return as_float64(raw, dtype) if is_float(dtype) else raw
