"""Replays operators cut out of a failing one on the device: inner kernels, judged as any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapml.carving.replay import replay
from tapml.carving.replay_results import ReplayResult
from tapml.compare.expectation import Expectation
from tapml.compare.movements import Movements
from tapml.compare.operator_class import traits_of
from tapml.compare.oracle import CarvedCase
from tapml.compare.sensitivity import Case, Twin, expect
from tapml.compiler.twin import compile_twins
from tapml.graph.plan import Operator
from tapml.localize.cutting import Cut
from tapml.localize.evaluation import MOST_POINTS, Evaluation
from tapml.localize.rounding import raw_bits
from tapml.localize.scene import Scene, whole
from tapml.localize.steps import Steps
from tapml_targets.errors import CompileError, DeviceLostError, TapmlError

Array = NDArray[Any]


@dataclass(frozen=True)
class InnerTensor:
    """An input of an inner operator; no weight, since it is replayed once."""

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
        """What it should write, in parameter order."""
        return list(self.results)


class _Expected:
    """What an inner operator should give; measured more closely only when somebody is accused."""

    def __init__(self, operator: Operator, case: CarvedCase, twin: Twin, scene: Scene) -> None:
        self._case = Case(
            operator,
            case.read_inputs(),
            case.read_outputs(),
            case.symbols,
            [None] * len(operator.read),
        )
        self._twin = twin
        self._policy = scene.failure.policy
        outputs = scene.failure.expectation.outputs
        # On an exact probe of an operator that computes its steps are exact as well.
        self._exact = all(output.operator_class == "exact" for output in outputs) and any(
            traits.operator_class != "exact" for traits in traits_of(scene.failure.operator)
        )

    def expect(self, test: CarvedCase) -> Expectation:
        return self._measured(self._policy.repeats)

    def appeal(self, test: CarvedCase) -> Expectation:
        return self._closely

    @cached_property
    def _closely(self) -> Expectation:
        return self._measured(self._policy.appeal_repeats)

    def _measured(self, repeats: int) -> Expectation:
        measured = expect(self._case, self._twin, Movements(self._policy.seed), repeats)
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
    """What an inner operator's kernel gave.

    Attributes
    ----------
    cut
        The operator.
    result
        Its replay.
    expectation
        What it was held against; None where it passed.
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
        """Whether the kernel does not pass, having run and been judged."""
        return self.result.verdict.status in ("fail", "degraded")


def replay_inner(scene: Scene, steps: Steps, cut: Cut, what: str) -> InnerReplay | None:
    """Compile an inner operator, run it on the float64 tensors rounded to their dtypes, judge it.

    Returns
    -------
    InnerReplay or None
        None, and a note, where it could not be compiled or judged.

    Raises
    ------
    DeviceLostError
        If the device is lost.
    """
    operator = cut.operator
    symbols = {name: scene.symbols[name] for name in operator.symbols}
    raw = [
        raw_bits(scene.exact[tensor], p.dtype)
        for tensor, p in zip(cut.reads, operator.read, strict=True)
    ]
    outputs = [
        raw_bits(scene.exact[tensor], p.dtype)
        for tensor, p in zip(cut.writes, operator.written, strict=True)
    ]
    case = InnerCase(
        id=f"{scene.failure.result.test}:{what}",
        key=f"{operator.hash}:{what}",
        operator=operator.name,
        symbols=symbols,
        inputs=tuple(InnerTensor(f"{what}:{index}") for index in range(len(raw))),
        arrays=tuple(raw),
        results=tuple(outputs),
    )
    try:
        library = scene.compile(operator, {})
        expected = _Expected(operator, case, _twin(scene, steps, cut), scene)
        policy = scene.failure.policy
        result = replay(operator, case, library, scene.session, expected, policy)
        closely = expected.appeal(case) if result.verdict.status != "pass" else None
    except DeviceLostError:
        raise
    except CompileError as error:
        scene.note(f"{what} could not be compiled by itself: {_short(error)}")
        return None
    except TapmlError as error:
        scene.note(f"{what} could not be replayed by itself: {_short(error)}")
        return None
    if result.verdict.status == "not run":
        scene.note(f"{what} was not judged: {result.verdict.reason}")
        return None
    return InnerReplay(cut, result, closely)


def _short(error: Exception) -> str:
    return str(error).splitlines()[0][:300] if str(error) else type(error).__name__


def _twin(scene: Scene, steps: Steps, cut: Cut) -> Twin:
    """The float64 twin of an inner operator: evaluated where that is little work, else compiled."""
    if scene.work_of(steps.steps) > MOST_POINTS >> 3:
        return compile_twins([cut.operator])[cut.operator.name]

    def twin(*arrays: Array, symbols: Mapping[str, int]) -> None:
        known = dict(zip(cut.reads, arrays, strict=False))
        evaluation = Evaluation(steps, known, scene.symbols)
        for tensor, array in zip(cut.writes, arrays[len(cut.reads) :], strict=True):
            array[...] = whole(evaluation, tensor)

    return twin
