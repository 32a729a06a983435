"""Replays operators cut out of a failing one on the device and judges their kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapml.compiler.twin import compile_twins
from tapml.diagnosis.cutting import Cut
from tapml.diagnosis.evaluation import MOST_POINTS, Evaluation, raw_bits
from tapml.diagnosis.failure_context import FailureContext, whole
from tapml.diagnosis.steps import Steps
from tapml.models.said_by import said_by
from tapml.oracles.carved_case import CarvedCase
from tapml.oracles.sensitivity import expect
from tapml.oracles.twin_runs import Case, Perturbations, Twin
from tapml.plan.graph_plan import Operator
from tapml.replaying.replayer import replay
from tapml.replaying.results import ReplayResult
from tapml.verdicts.expectation import Expectation
from tapml.verdicts.operator_class import traits_of
from tapml_targets.errors import CompileError, DeviceLostError, TapmlError

Array = NDArray[Any]


@dataclass(frozen=True)
class InnerTensor:
    """An input of an inner operator; not a weight, because it is replayed once."""

    key: str
    lifetime: str = "activation"


@dataclass(frozen=True)
class InnerCase:
    """A test of an inner operator, as if it had been carved."""

    id: str
    key: str
    operator: str
    symbols: Mapping[str, int]
    inputs: tuple[InnerTensor, ...]
    arrays: tuple[Array, ...]
    results: tuple[Array, ...]

    def read_inputs(self) -> list[Array]:
        """Raw inputs, in parameter order."""
        return list(self.arrays)

    def read_outputs(self) -> list[Array]:
        """Expected outputs, in parameter order."""
        return list(self.results)


class _Expected:
    """The expectation of an inner operator; measured more closely before a suspect is named."""

    def __init__(
        self, operator: Operator, case: CarvedCase, twin: Twin, context: FailureContext
    ) -> None:
        self._case = Case(
            operator,
            case.read_inputs(),
            case.read_outputs(),
            case.symbols,
            [None] * len(operator.read),
        )
        self._twin = twin
        self._policy = context.failure.policy
        outputs = context.failure.expectation.outputs
        # On an exact probe of an operator with arithmetic, its steps are exact as well.
        self._exact = all(output.operator_class == "exact" for output in outputs) and any(
            traits.operator_class != "exact" for traits in traits_of(context.failure.operator)
        )

    def expect(self, test: CarvedCase) -> Expectation:
        return self._measured(self._policy.repeats)

    def appeal(self, test: CarvedCase) -> Expectation:
        return self._closely

    @cached_property
    def _closely(self) -> Expectation:
        return self._measured(self._policy.appeal_repeats)

    def _measured(self, repeats: int) -> Expectation:
        measured = expect(self._case, self._twin, Perturbations(self._policy.seed), repeats)
        if not self._exact:
            return measured
        outputs = (
            replace(
                output,
                sensitivity=np.zeros_like(output.sensitivity),
                operator_class="exact",
            )
            for output in measured.outputs
        )
        return replace(measured, outputs=tuple(outputs))


@dataclass(frozen=True)
class InnerReplay:
    """The result of an inner operator's kernel.

    Attributes
    ----------
    cut
        The operator.
    result
        Its replay.
    expectation
        What it was compared with; None if it passed.
    """

    cut: Cut
    result: ReplayResult
    expectation: Expectation | None

    @property
    def right(self) -> bool:
        """Whether the kernel passes."""
        return self.result.verdict.status == "pass"

    @property
    def wrong(self) -> bool:
        """Whether the kernel ran, was judged and did not pass."""
        return self.result.verdict.status in ("fail", "degraded")


def replay_inner(context: FailureContext, steps: Steps, cut: Cut, what: str) -> InnerReplay | None:
    """Compile an inner operator, run it on the rounded float64 tensors, and judge it.

    Returns
    -------
    InnerReplay or None
        None, and a note, if it could not be compiled or judged.

    Raises
    ------
    DeviceLostError
        If the device is lost.
    """
    operator = cut.operator
    symbols = {name: context.symbols[name] for name in operator.symbols}
    raw = [
        raw_bits(context.exact[tensor], p.dtype)
        for tensor, p in zip(cut.reads, operator.read, strict=True)
    ]
    outputs = [
        raw_bits(context.exact[tensor], p.dtype)
        for tensor, p in zip(cut.writes, operator.written, strict=True)
    ]
    case = InnerCase(
        id=f"{context.failure.result.test}:{what}",
        key=f"{operator.hash}:{what}",
        operator=operator.name,
        symbols=symbols,
        inputs=tuple(InnerTensor(f"{what}:{index}") for index in range(len(raw))),
        arrays=tuple(raw),
        results=tuple(outputs),
    )
    try:
        library = context.compile(operator, {})
        expected = _Expected(operator, case, _twin(context, steps, cut), context)
        policy = context.failure.policy
        result = replay(operator, case, library, context.session, expected, policy)
        closely = expected.appeal(case) if result.verdict.status != "pass" else None
    except DeviceLostError:
        raise
    except CompileError as error:
        context.note(f"{what} could not be compiled by itself: {said_by(error)}")
        return None
    except TapmlError as error:
        context.note(f"{what} could not be replayed by itself: {said_by(error)}")
        return None
    if result.verdict.status == "not run":
        context.note(f"{what} was not judged: {result.verdict.reason}")
        return None
    return InnerReplay(cut, result, closely)


def _twin(context: FailureContext, steps: Steps, cut: Cut) -> Twin:
    """The float64 twin of an inner operator: evaluated if that is little work, else compiled."""
    if context.work_of(steps.steps) > MOST_POINTS >> 3:
        return compile_twins([cut.operator])[cut.operator.name]

    def twin(*arrays: Array, symbols: Mapping[str, int]) -> None:
        known = dict(zip(cut.reads, arrays, strict=False))
        evaluation = Evaluation(steps, known, context.symbols)
        for tensor, array in zip(cut.writes, arrays[len(cut.reads) :], strict=True):
            array[...] = whole(evaluation, tensor)

    return twin
