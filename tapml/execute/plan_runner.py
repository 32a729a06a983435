"""The finished plan on its device alone: one call per run, weights and state resident there.

Lines 14 and 15 of Algorithm 1. Nothing of a run is decided on the host: a step writes its inputs,
calls the entry and reads the outputs in one batch, one round trip.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from tapml.compiler.preflight import require
from tapml.compiler.reach import reach_of
from tapml.execute.arrays import Array, flat_bytes
from tapml.execute.binding import bind_symbols, entry_of
from tapml.execute.device import DeviceBuffer, DeviceMemory
from tapml.graph.plan import GraphPlan
from tapml_rpc.remote import RemoteTensor
from tapml_targets.dtype import dtype
from tapml_targets.errors import InputError
from tapml_targets.expression import evaluate
from tapml_targets.library import EntryProgram, Library, Parameter

if TYPE_CHECKING:
    from tapml_rpc.client import Session

_ZERO: Final = b"\0"


class PlanRunner:
    """Runs a plan's entries on a device; a context manager that gives its memory back.

    Parameters
    ----------
    plan
        The plan.
    weights
        Every weight by name; uploaded once.
    library
        The plan's linked Library (:func:`tapml.compiler.link.link_entries`).
    session
        The device.

    Raises
    ------
    InputError
        If the Library lacks an entry of the plan, or a weight is missing.
    LimitExceededError
        If the device cannot run the Library.
    """

    def __init__(
        self,
        plan: GraphPlan,
        weights: Mapping[str, Array],
        library: Library,
        session: Session,
    ) -> None:
        missing = [name for name in plan.entries if name not in library.entries]
        missing += [name for name in plan.weights if name not in weights]
        if missing:
            raise InputError(f"{plan.name} cannot run: nothing was given for {', '.join(missing)}")
        require(library, session.device.limits, reach=reach_of(plan))
        self.plan = plan
        self._entries: dict[str, EntryProgram] = library.entries
        self._session = session
        self._memory = DeviceMemory(session)
        self._library = session.upload(library)
        for name in plan.weights:
            self._memory.weight(name, weights[name])
        self._weights = weights
        self._state = {name: self._acquire(name) for name in plan.state}
        # A run reads a state tensor here and writes its successor there; then they change places.
        self._next = {name: self._acquire(name) for name in plan.state}
        self.reset()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free weights, state and everything else this runner holds on the device."""
        self._state.clear()
        self._next.clear()
        self._memory.forget_weights()
        self._memory.trim()

    def reset(self) -> None:
        """Set the state to zero."""
        for buffer in self._state.values():
            self._session.fill(buffer.remote, _ZERO, buffer.nbytes)

    def run(self, entry: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run an entry on the present state and leave the state it produces.

        Parameters
        ----------
        entry
            ``prefill``, ``decode``.
        inputs
            The entry's inputs by name, without state.

        Returns
        -------
        dict
            The entry's outputs by name.

        Raises
        ------
        InputError
            If there is no such entry, or an input is missing or of another shape or dtype.
        """
        graph = entry_of(self.plan, entry)
        symbols = bind_symbols(graph, inputs)
        program = self._entries[entry]
        held: list[DeviceBuffer] = []
        tensors: list[RemoteTensor] = []
        reads = []
        with self._session.batch() as batch:
            for parameter in program.parameters:
                shape = tuple(evaluate(extent, symbols) for extent in parameter.shape)
                buffer = self._place(parameter, shape)
                held.append(buffer)
                tensors.append(RemoteTensor(buffer.remote, 0, shape, parameter.dtype))
                kind, _, name = parameter.name.partition(":")
                if kind == "input":
                    batch.write(buffer.remote, flat_bytes(np.ascontiguousarray(inputs[name])))
            extra = {name: symbols[name] for name in program.symbols}
            batch.call(self._library, entry, tensors, extra)
            for parameter, tensor in zip(program.parameters, tensors, strict=True):
                kind, _, name = parameter.name.partition(":")
                if kind == "output":
                    reads.append((name, tensor, batch.read(tensor.buffer, tensor.nbytes)))
        for binding in graph.state:
            self._advance(program, binding.state)
        return {
            name: np.frombuffer(read.result(), dtype(tensor.dtype).numpy_name).reshape(tensor.shape)
            for name, tensor, read in reads
        }

    def _place(self, parameter: Parameter, shape: tuple[int, ...]) -> DeviceBuffer:
        kind, _, name = parameter.name.partition(":")
        match kind:
            case "weight":
                return self._memory.weight(name, self._weights[name])
            case "state":
                return self._state[name]
            case "next":
                return self._next[name]
        return self._memory.acquire(_nbytes(shape, parameter.dtype))

    def _advance(self, program: EntryProgram, state: str) -> None:
        if any(parameter.name == f"next:{state}" for parameter in program.parameters):
            self._state[state], self._next[state] = self._next[state], self._state[state]

    def _acquire(self, state: str) -> DeviceBuffer:
        specification = self.plan.state[state]
        return self._memory.acquire(_nbytes(specification.shape, specification.dtype))


def _nbytes(shape: tuple[int, ...], dtype_name: str) -> int:
    elements = 1
    for extent in shape:
        elements *= extent
    return dtype(dtype_name).nbytes(elements)
