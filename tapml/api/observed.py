"""Call sites as tests held in memory: what a carved suite is on disk, for one run of a module."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from tapml.execute.executor import Executor
from tapml.graph.plan import CallStep, Entry, GraphPlan
from tapml_targets.expression import bind_shape, evaluate

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ObservedTensor:
    """A tensor that a call site read: its lifetime and what identifies its content."""

    key: str
    lifetime: str


@dataclass(frozen=True)
class ObservedTest:
    """One call site of one run: t = (F, I, O) of section III-C.

    `arrays_read` and `arrays_written` are raw, in the operator's parameter order.
    """

    id: str
    operator: str
    symbols: Mapping[str, int]
    inputs: Sequence[ObservedTensor]
    key: str
    arrays_read: tuple[Array, ...] = field(repr=False)
    arrays_written: tuple[Array, ...] = field(repr=False)

    def read_inputs(self) -> list[Array]:
        """Raw inputs, in parameter order."""
        return list(self.arrays_read)

    def read_outputs(self) -> list[Array]:
        """The reference's raw outputs, in parameter order."""
        return list(self.arrays_written)


def observe(
    executor: Executor, entry: str, inputs: Mapping[str, Array]
) -> tuple[list[ObservedTest], dict[str, Array]]:
    """Run an entry once and keep every call site as a test.

    Returns
    -------
    tuple
        The tests in order, and the outputs by name.
    """
    plan = executor.plan
    graph = plan.entries[entry]
    symbols: dict[str, int] = {}
    for name, array in inputs.items():
        bind_shape(graph.values[name].shape, array.shape, symbols, name)
    tests: list[ObservedTest] = []

    def keep(step: CallStep, read: Sequence[Array], written: Sequence[Array]) -> None:
        tests.append(_test(plan, graph, step, symbols, tuple(read), tuple(written)))

    return tests, executor.run(entry, inputs, keep)


def _test(
    plan: GraphPlan,
    graph: Entry,
    step: CallStep,
    symbols: Mapping[str, int],
    read: tuple[Array, ...],
    written: tuple[Array, ...],
) -> ObservedTest:
    parameters = plan.operators[step.operator].parameters
    values = [
        graph.values[name]
        for parameter, name in zip(parameters, step.arguments, strict=True)
        if parameter.role != "output"
    ]
    tensors = []
    for value, array in zip(values, read, strict=True):
        storage = graph.storages[value.storage]
        place = f"{value.byte_offset} {value.shape} {value.dtype}"
        content = f"{storage.name} {place}" if storage.lifetime == "weight" else _content(array)
        tensors.append(ObservedTensor(content, storage.lifetime))
    digest = hashlib.sha256(plan.operators[step.operator].hash.encode())
    for array in (*read, *written):
        digest.update(_content(array).encode())
    return ObservedTest(
        id=step.site,
        operator=step.operator,
        symbols={name: evaluate(value, symbols) for name, value in step.symbols},
        inputs=tensors,
        key=digest.hexdigest(),
        arrays_read=read,
        arrays_written=written,
    )


def _content(array: Array) -> str:
    digest = hashlib.sha256(f"{array.shape} {array.dtype}".encode())
    digest.update(array.tobytes())
    return digest.hexdigest()
