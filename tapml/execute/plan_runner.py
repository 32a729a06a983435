"""Runs a finished plan on its device only: one call per run, with resident weights and state.

Lines 14 and 15 of Algorithm 1. The host decides nothing during a run: a step writes its inputs,
calls the entry and reads the outputs in one batch, one round trip. An entry with static shapes
(decode) is recorded on the device as a program, once per arrangement of its state, so that a run is
one command that carries the inputs and a reply that carries the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Self, TypeAlias

import numpy as np

from tapml.compiler.preflight import require
from tapml.compiler.symbol_ranges import symbol_ranges
from tapml.execute.arrays import Array, flat_bytes
from tapml.execute.binding import bind_symbols, entry_of
from tapml.execute.device import DeviceBuffer, DeviceMemory
from tapml.execute.fixed_entry import FixedEntry
from tapml.plan.graph_plan import GraphPlan
from tapml_rpc.remote import RemoteTensor
from tapml_targets.call_plan import TensorShape, plan_call
from tapml_targets.dtype import dtype
from tapml_targets.errors import InputError
from tapml_targets.expression import evaluate
from tapml_targets.library import EntryProgram, Library, Parameter

if TYPE_CHECKING:
    from tapml_rpc.client import Batch, Session
    from tapml_rpc.transport import PendingCall, PendingRead

_ZERO: Final = b"\0"

Output: TypeAlias = "tuple[str, RemoteTensor, PendingRead]"
"""An output's name, the tensor on the device, and its bytes to come."""


class PlanRunner:
    """Runs a plan's entries on a device; a context manager that frees its memory.

    Parameters
    ----------
    weights
        Every weight by name; uploaded once.
    library
        The plan's linked Library (:func:`tapml.compiler.link.link_entries`).

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
            raise InputError(f"{plan.name} cannot run: missing weights: {', '.join(missing)}")
        require(library, session.device.limits, ranges=symbol_ranges(plan))
        self.plan = plan
        self._entries: dict[str, EntryProgram] = library.entries
        self._programs = library
        # Entries that have run, with the symbols of their inputs.
        self._called: set[tuple[str, tuple[tuple[str, int], ...]]] = set()
        self._session = session
        self._memory = DeviceMemory(session)
        self._library = session.upload(library)
        self._memory.weights(plan.weights, weights)
        self._weights = weights
        self._state = {name: self._acquire(name) for name in plan.state}
        # A run reads a state tensor here and writes its successor there; then they are swapped.
        self._next = {name: self._acquire(name) for name in replaced_state(plan, library)}
        # Which state tensors are swapped: bit i for the i-th; and the bits that an entry flips.
        self._arrangement = 0
        self._flips = {
            name: sum(
                1 << index
                for index, state in enumerate(plan.state)
                if any(each.name == f"next:{state}" for each in program.parameters)
            )
            for name, program in library.entries.items()
        }
        self._fixed: dict[str, FixedEntry] = {}
        self.reset()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free weights, state and everything else this runner holds on the device."""
        self._fixed.clear()
        self._state.clear()
        self._next.clear()
        self._memory.forget_weights()
        self._memory.trim()

    def reset(self) -> None:
        """Set the state to zero."""
        for buffer in self._state.values():
            self._session.fill(buffer.remote, _ZERO, buffer.nbytes)

    def run(self, entry: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run an entry on the current state and replace the state by the result.

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
        return self._run(entry, inputs, timed=False)[0]

    def run_timed(self, entry: str, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], int]:
        """Run an entry; return its outputs and its kernels' nanoseconds on the device's clock."""
        outputs, call = self._run(entry, inputs, timed=True)
        nanoseconds = None if call is None else call.result().kernel_nanoseconds
        return outputs, nanoseconds or 0

    @property
    def workspace_bytes(self) -> int:
        """Device memory that the runs so far took beside buffers: intermediates and workspaces."""
        kept: dict[int, int] = {}
        for entry, symbols in self._called:
            known = dict(symbols)
            program = self._entries[entry]
            shapes = [
                TensorShape(
                    tuple(evaluate(each, known) for each in parameter.shape), parameter.dtype
                )
                for parameter in program.parameters
            ]
            extra = {name: known[name] for name in program.symbols}
            for slot in plan_call(self._programs, entry, shapes, extra).workspaces:
                kept[slot.shared] = max(kept.get(slot.shared, 0), slot.nbytes)
        return sum(kept.values())

    def _run(
        self, entry: str, inputs: Mapping[str, Array], *, timed: bool
    ) -> tuple[dict[str, Array], PendingCall | None]:
        fixed = self._fixed.get(entry)
        symbols: Mapping[str, int] = {}
        if fixed is None or not fixed.takes(inputs):
            symbols = bind_symbols(entry_of(self.plan, entry), inputs)
        program = self._entries[entry]
        self._called.add((entry, tuple(symbols.items())))
        try:
            with self._session.batch() as batch:
                call: PendingCall | None
                if symbols or program.symbols:
                    outputs, call = self._call(batch, program, symbols, inputs, timed=timed)
                else:
                    outputs, call = self._run_fixed(batch, program, inputs, timed=timed)
        except BaseException:
            # A recording in a batch that failed or was interrupted may not exist on the device.
            self._fixed.pop(entry, None)
            raise
        self._advance(entry)
        return {
            name: np.frombuffer(read.result(), dtype(tensor.dtype).numpy_name).reshape(tensor.shape)
            for name, tensor, read in outputs
        }, call

    def _run_fixed(
        self, batch: Batch, program: EntryProgram, inputs: Mapping[str, Array], *, timed: bool
    ) -> tuple[list[Output], PendingCall | None]:
        fixed = self._fixed.get(program.name)
        if fixed is None:
            fixed = FixedEntry(program, self._library, self._memory, self._resident)
            self._fixed[program.name] = fixed
        staged = fixed.fill(inputs)
        if timed or fixed.written_apart:
            batch.write(fixed.inputs.remote, staged)
        outputs = fixed.outputs.items()
        call: PendingCall | None = None
        if timed:
            call = fixed.call(batch)
            reads = [batch.read(tensor.buffer, tensor.nbytes) for _, tensor in outputs]
        else:
            payloads = () if fixed.written_apart else (staged,)
            reads = batch.execute(fixed.program(batch, self._arrangement), *payloads)
        return [(*each, read) for each, read in zip(outputs, reads, strict=True)], call

    def _call(
        self,
        batch: Batch,
        program: EntryProgram,
        symbols: Mapping[str, int],
        inputs: Mapping[str, Array],
        *,
        timed: bool,
    ) -> tuple[list[Output], PendingCall | None]:
        held: list[DeviceBuffer] = []
        tensors: list[RemoteTensor] = []
        for parameter in program.parameters:
            shape = tuple(evaluate(extent, symbols) for extent in parameter.shape)
            kind, _, name = parameter.name.partition(":")
            if kind in ("input", "output"):
                buffer = self._memory.acquire(_nbytes(shape, parameter.dtype))
            else:
                buffer = self._resident(parameter)
            held.append(buffer)
            tensors.append(RemoteTensor(buffer.remote, 0, shape, parameter.dtype))
            if kind == "input":
                batch.write(buffer.remote, flat_bytes(np.ascontiguousarray(inputs[name])))
        call = self._launch(batch, program, tensors, symbols, timed=timed)
        outputs = []
        for parameter, tensor in zip(program.parameters, tensors, strict=True):
            kind, _, name = parameter.name.partition(":")
            if kind == "output":
                outputs.append((name, tensor, batch.read(tensor.buffer, tensor.nbytes)))
        return outputs, call

    def _launch(
        self,
        batch: Batch,
        program: EntryProgram,
        tensors: Sequence[RemoteTensor],
        symbols: Mapping[str, int],
        *,
        timed: bool,
    ) -> PendingCall | None:
        """Call an entry on tensors, one per parameter."""
        extra = {name: symbols[name] for name in program.symbols}
        return batch.call(self._library, program.name, tensors, extra, timed=timed)

    def _advance(self, entry: str) -> None:
        flips = self._flips[entry]
        self._arrangement ^= flips
        for index, state in enumerate(self._state):
            if flips >> index & 1:
                self._state[state], self._next[state] = self._next[state], self._state[state]

    def _resident(self, parameter: Parameter) -> DeviceBuffer:
        """The buffer of a weight, a state tensor or its successor."""
        kind, _, name = parameter.name.partition(":")
        if kind == "weight":
            return self._memory.weight(name, self._weights[name])
        return self._state[name] if kind == "state" else self._next[name]

    def _acquire(self, state: str) -> DeviceBuffer:
        specification = self.plan.state[state]
        return self._memory.acquire(_nbytes(specification.shape, specification.dtype))


def replaced_state(plan: GraphPlan, library: Library) -> tuple[str, ...]:
    """The state tensors that entries write out of place, which take twice the memory."""
    written = {each.name for entry in library.entries.values() for each in entry.parameters}
    return tuple(name for name in plan.state if f"next:{name}" in written)


def resident_state_bytes(plan: GraphPlan, library: Library) -> int:
    """Bytes of device memory that a :class:`PlanRunner` holds for state."""
    return sum(
        _nbytes(plan.state[name].shape, plan.state[name].dtype)
        for name in (*plan.state, *replaced_state(plan, library))
    )


def _nbytes(shape: tuple[int, ...], dtype_name: str) -> int:
    elements = 1
    for extent in shape:
        elements *= extent
    return dtype(dtype_name).nbytes(elements)
