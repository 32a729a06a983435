"""Call sites of one run of a module as tests in memory, like a carved suite on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tapml.execute.executor import Executor
from tapml.plan.graph_plan import CallStep, Entry, GraphPlan
from tapml_targets.expression import bind_shape, evaluate

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ObservedTensor:
    """A tensor that a call site read: a hash of its content, and its lifetime."""

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
    """Run an entry once and record each call site as a test.

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
    contents = [_content(array) for array in read]
    tensors = []
    for value, content in zip(values, contents, strict=True):
        storage = graph.storages[value.storage]
        place = f"{storage.name} {value.byte_offset} {value.shape} {value.dtype}"
        key = place if storage.lifetime == "weight" else content
        tensors.append(ObservedTensor(key, storage.lifetime))
    digest = hashlib.sha256(plan.operators[step.operator].hash.encode())
    for content in (*contents, *map(_content, written)):
        digest.update(content.encode())
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
    digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()
