"""A carved test held in memory: what oracle and replay read of one from a suite."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapml.compiler.reference_module import ReferenceModule
from tapml.oracles.carved_case import CarvedCase
from tapml.oracles.probes import ProbeCase
from tapml.plan.graph_plan import Operator
from tapml.verdicts.expectation import Expectation
from tapml_targets.dtype import dtype

Array = NDArray[Any]


@dataclass(frozen=True)
class MemoryTensor:
    key: str
    lifetime: str


@dataclass(frozen=True)
class MemoryCase:
    id: str
    operator: str
    arrays: tuple[Array, ...]
    results: tuple[Array, ...]
    lifetimes: tuple[str, ...]
    symbols: Mapping[str, int] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return _digest(*self.arrays, *self.results)

    @property
    def inputs(self) -> tuple[MemoryTensor, ...]:
        return tuple(
            MemoryTensor(_digest(array), lifetime)
            for array, lifetime in zip(self.arrays, self.lifetimes, strict=True)
        )

    def read_inputs(self) -> list[Array]:
        return list(self.arrays)

    def read_outputs(self) -> list[Array]:
        return list(self.results)


def make_case(
    operator: Operator,
    reference: ReferenceModule,
    inputs: Sequence[Array],
    *,
    name: str = "test",
    weights: Sequence[int] = (),
) -> MemoryCase:
    """The test that carving `inputs` gives; `weights` are the positions of weights."""
    outputs = tuple(
        np.zeros([int(n) for n in p.shape if isinstance(n, int)], numpy_dtype(p.dtype))
        for p in operator.written
    )
    reference[operator.name](*inputs, *outputs)
    lifetimes = tuple("weight" if i in weights else "activation" for i in range(len(inputs)))
    return MemoryCase(name, operator.name, tuple(inputs), outputs, lifetimes)


def numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(dtype(name).numpy_name)


def _digest(*arrays: Array) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(repr((array.shape, array.dtype.str)).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


class ProbeOracle:
    """Judges a probe by the expectation that it brings along."""

    def expect(self, test: CarvedCase) -> Expectation:
        """What the probe must give."""
        assert isinstance(test, ProbeCase)
        return test.expectation

    def appeal(self, test: CarvedCase) -> Expectation:
        """The same: it is exact."""
        return self.expect(test)
