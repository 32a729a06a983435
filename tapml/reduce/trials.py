"""Runs inputs on a kernel, to check whether it still fails.

Reference, float64 twin and sensitivities are computed for every candidate: a reduced test is judged
like a carved one, never by the expectations of the larger one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapml.compiler.reference import compile_reference
from tapml.compiler.twin import compile_twins
from tapml.oracles.oracle import Oracle
from tapml.plan.graph_plan import Operator
from tapml.reduce.device import ReopeningDevice
from tapml.replaying.failure import Failure
from tapml.replaying.replayer import replay
from tapml.replaying.results import ReplayResult
from tapml.suite.memory_case import MemoryCase, content_key
from tapml.verdicts.policy import Policy
from tapml_targets.dtype import dtype as lookup
from tapml_targets.errors import CompileError, DeviceLostError, InputError
from tapml_targets.expression import bind_shape, evaluate
from tapml_targets.library import Library

Array = NDArray[Any]


@dataclass(frozen=True)
class Candidate:
    """Inputs for an operator: raw arrays in parameter order, and integer arguments."""

    inputs: tuple[Array, ...]
    symbols: Mapping[str, int]

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the inputs."""
        return tuple(array.shape for array in self.inputs)


class Trials:
    """Runs candidates of one operator with one Library on a device.

    Parameters
    ----------
    operator
        With its function.
    library
        The Library to run.
    policy
        The tolerances of the verdicts.
    device
        Reopened if a candidate crashes it.

    Raises
    ------
    CompileError
        If reference or twin cannot be compiled.
    """

    def __init__(
        self, operator: Operator, library: Library, policy: Policy, device: ReopeningDevice
    ) -> None:
        self.operator = operator
        self.library = library
        self.device = device
        self._policy = policy
        self._reference = compile_reference([operator])[operator.name]
        self._twins = compile_twins([operator])

    def run(self, candidate: Candidate, name: str = "candidate") -> ReplayResult | None:
        """Replay a candidate; None if it cannot be run or crashes the device.

        Raises
        ------
        TapmlError
            If a lost device cannot be reopened.
        """
        try:
            case = self._case(candidate, name)
            # Torch's result takes longer than everything else and never changes the target's
            # verdict.
            plain = replace(self.operator, torch_forms=())
            with np.errstate(all="ignore"), self._oracle(plain) as oracle:
                return replay(
                    plain,
                    case,
                    self.device.upload(self.library),
                    self.device.memory().session,
                    oracle,
                    self._policy,
                    memory=self.device.memory(),
                )
        except DeviceLostError:
            self.device.lost()
            return None
        except (InputError, CompileError):
            return None

    def failure(self, result: ReplayResult) -> Failure:
        """The content of a result's repro folder."""
        with np.errstate(all="ignore"), self._oracle(self.operator) as oracle:
            expectation = oracle.appeal(result.case)
        return Failure(
            operator=self.operator,
            result=result,
            library=self.library,
            device=self.device.description,
            expectation=expectation,
            policy=self._policy,
        )

    def _oracle(self, operator: Operator) -> Oracle:
        # A new oracle without cache, because every candidate is used once.
        return Oracle({operator.name: operator}, lambda _: self._twins, self._policy)

    def _case(self, candidate: Candidate, name: str) -> MemoryCase:
        operator, inputs = self.operator, candidate.inputs
        outputs = empty_outputs(operator, inputs, candidate.symbols)
        read, written = iter(inputs), iter(outputs)
        arguments = []
        for parameter in operator.parameters:
            if parameter.role == "inout":
                array = next(written)
                np.copyto(array, next(read))
            else:
                array = next(read if parameter.role == "input" else written)
            arguments.append(array)
        with np.errstate(all="ignore"):
            self._reference(*arguments, symbols=candidate.symbols)
        key = content_key(operator.hash, candidate.symbols, [*inputs, *outputs])
        return MemoryCase(name, key, operator.name, candidate.symbols, inputs, tuple(outputs))


def bound_symbols(
    operator: Operator, inputs: Sequence[Array], passed: Mapping[str, int]
) -> dict[str, int]:
    """Values of all shape symbols of an operator for these inputs.

    Raises
    ------
    InputError
        If an input does not have the operator's declared shape.
    """
    symbols = dict(passed)
    for parameter, array in zip(operator.read, inputs, strict=True):
        bind_shape(parameter.shape, array.shape, symbols, f"input {parameter.name}")
    return symbols


def empty_outputs(
    operator: Operator, inputs: Sequence[Array], passed: Mapping[str, int]
) -> list[Array]:
    """Arrays of the outputs' shapes and dtypes.

    Raises
    ------
    InputError
        If the shapes are inconsistent.
    """
    symbols = bound_symbols(operator, inputs, passed)
    return [
        np.zeros(
            [evaluate(extent, symbols) for extent in parameter.shape],
            lookup(parameter.dtype).numpy_name,
        )
        for parameter in operator.written
    ]
