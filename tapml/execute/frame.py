"""One run of a program: its host arrays, its device buffers, its actions."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

import numpy as np

from tapml.execute.arrays import Array, Bytes, flat_bytes, window
from tapml.execute.binding import BoundCall, BoundValue
from tapml.execute.memory import HostMemory
from tapml.execute.place import HOST, Place
from tapml.execute.prepared import PreparedCall, PreparedProgram
from tapml.execute.schedule import (
    Allocate,
    DeviceCall,
    DeviceCommands,
    Download,
    HostCalls,
    Observe,
    Ready,
    Release,
    Upload,
)
from tapml.execute.segments import Segment, padded
from tapml.execute.state import StateCell
from tapml_targets.errors import TapmlError

if TYPE_CHECKING:
    from tapml.execute.device import DeviceBuffer, DeviceMemory
    from tapml.execute.interfaces import Observer, RunSink
    from tapml_rpc.transport import PendingRead

# Consecutive recorded runs share contiguous blocks of memory.
STRIP_BYTES: Final = 2 << 20
LONGEST_STRIP: Final = 16


class Frame:
    """The memory of one run."""

    def __init__(
        self,
        prepared: PreparedProgram,
        state: Mapping[str, StateCell],
        host: HostMemory,
        devices: Mapping[Place, DeviceMemory],
    ) -> None:
        self.prepared = prepared
        self.bound = prepared.program.bound
        self.state = dict(state)
        self.host = host
        self.devices = devices
        self.arrays = list(prepared.arrays)
        self.memory: dict[int, Bytes] = {}
        self.buffers: dict[tuple[Place, str], DeviceBuffer] = {}

    def run(
        self,
        inputs: Mapping[str, Array],
        observer: Observer | None,
        sink: RunSink | None,
    ) -> tuple[dict[str, Array], dict[str, StateCell]]:
        """Execute all actions; return the outputs and the new state."""
        prepared = self.prepared
        self._enter()
        if sink is not None:
            sink.begin(prepared.program)
        for action in prepared.program.actions:
            match action:
                case HostCalls():
                    self._call_host(prepared.host_calls[id(action)])
                case Allocate(segment):
                    recorded = None if sink is None else sink.memory(segment)
                    self._allocate(segment, inputs, recorded)
                case Ready(segment):
                    if sink is not None and segment.kind != "state":
                        sink.segment(segment, self.memory[segment.index])
                case Release(segment):
                    del self.memory[segment.index]
                    for index, *_ in prepared.windows[segment.index]:
                        self.arrays[index] = None
                case DeviceCommands():
                    self._call_device(action)
                case Observe(call):
                    if observer is not None:
                        observer(
                            call.step,
                            [self._array(index) for index in call.reads],
                            [self._array(index) for index in call.writes],
                        )
        state = self._leave()
        if sink is not None:
            sink.end(self.state, state)
        return self._outputs(), state

    def _enter(self) -> None:
        """Load the state on entry and the weights the device needs."""
        for storage, (name, values) in self.prepared.before.items():
            cell = self.state[name]
            for place, buffer in cell.buffers.items():
                self.buffers[place, storage] = buffer
            if cell.array is None:
                continue
            for value in values:
                self.arrays[value.index] = (
                    cell.array
                    if value.shape == cell.array.shape and value.byte_offset == 0
                    else window(cell.array, value.byte_offset, value.shape, value.dtype)
                )
        for place, needed in self.prepared.program.device_weights.items():
            device = self.devices[place]
            with device.faults():
                weights = device.weights(needed, self.prepared.weights)
            self.buffers.update({(place, name): weights[name] for name in weights})

    def _allocate(
        self, segment: Segment, inputs: Mapping[str, Array], recorded: HostMemory | None
    ) -> None:
        if recorded is None:
            memory = self.host.acquire(segment, segment.nbytes, dense=segment.dense)
        else:
            memory = recorded.acquire(
                segment,
                segment.nbytes,
                dense=segment.dense,
                strip=max(1, min(LONGEST_STRIP, STRIP_BYTES // segment.nbytes)),
            )
        self.memory[segment.index] = memory
        arrays = self.arrays
        for index, offset, shape, numpy_dtype in self.prepared.windows[segment.index]:
            arrays[index] = np.ndarray(shape, numpy_dtype, memory, offset)
        for name, index in self.prepared.inputs.get(segment.index, ()):
            self._array(index)[...] = inputs[name]

    def _call_host(self, calls: tuple[PreparedCall, ...]) -> None:
        arrays = self.arrays
        step = calls[0][2].step
        try:
            for function, pick, call in calls:
                step = call.step
                function(*pick(arrays))
        except Exception as error:
            raise TapmlError(
                f"call site {step.site} failed on the reference (operator {step.operator}): {error}"
            ) from error

    def _call_device(self, action: DeviceCommands) -> None:
        """Send commands; do not wait for them unless something is read back."""
        device = self.devices[action.place]
        with device.faults():
            self._send(action, device)

    def _send(self, action: DeviceCommands, device: DeviceMemory) -> None:
        place = action.place
        pending: list[tuple[str, PendingRead]] = []
        copied: list[tuple[StateCell, DeviceBuffer]] = []
        reads = any(isinstance(command, Download) for command in action.commands)
        with device.session.batch() if reads else nullcontext(None) as batch:
            for command in action.commands:
                match command:
                    case Upload(storage):
                        buffer = self._buffer(place, storage)
                        device.write(buffer, self._storage_bytes(storage))
                        if storage in self.prepared.before:
                            copied.append((self.state[self.prepared.before[storage][0]], buffer))
                    case DeviceCall(call):
                        self._launch(place, call)
                    case Download(storage) if batch is not None:
                        pending.append(
                            (storage, device.read_later(batch, self.buffers[place, storage]))
                        )
                for storage in self.prepared.last_device_use.get(id(command), ()):
                    self.buffers.pop((place, storage), None)
        for cell, buffer in copied:
            cell.buffers[place] = buffer
        for storage, later in pending:
            self._storage_bytes(storage)[:] = np.frombuffer(later.result(), np.uint8)
            if storage in self.prepared.before:
                name = self.prepared.before[storage][0]
                self._fill_cell(self.state[name], self.bound.values[self.bound.before[name]])

    def _launch(self, place: Place, call: BoundCall) -> None:
        tensors = []
        for index in call.arguments:
            value = self.bound.by_index[index]
            buffer = self._buffer(place, value.storage)
            tensors.append((buffer, value.byte_offset, value.shape, value.dtype))
        self.devices[place].call(call.step.operator, tensors, dict(call.symbols))

    def _buffer(self, place: Place, storage: str) -> DeviceBuffer:
        buffer = self.buffers.get((place, storage))
        if buffer is None:
            buffer = self.devices[place].acquire(self.bound.storages[storage].nbytes)
            self.buffers[place, storage] = buffer
        return buffer

    def _storage_bytes(self, storage: str) -> Bytes:
        place = self.prepared.place_of.get(storage)
        if place is None:
            name = self.prepared.before[storage][0]
            return flat_bytes(self._array(self.bound.values[self.bound.before[name]].index))
        segment, offset, nbytes = place
        return self.memory[segment][offset : offset + nbytes]

    def _array(self, index: int) -> Array:
        array = self.arrays[index]
        if array is None:
            raise TapmlError(f"value {self.bound.by_index[index].name} is not on the host")
        return array

    def _leave(self) -> dict[str, StateCell]:
        state: dict[str, StateCell] = {}
        program = self.prepared.program
        for name, value_name in self.bound.after.items():
            value = self.bound.values[value_name]
            if value.storage in self.prepared.before:
                state[name] = self.state[self.prepared.before[value.storage][0]]
                continue
            places = program.state_places[name]
            state[name] = cell = StateCell()
            if HOST in places:
                self._fill_cell(cell, value)
            cell.buffers = {
                place: self.buffers[place, value.storage] for place in places if place != HOST
            }
        return state

    def _fill_cell(self, cell: StateCell, value: BoundValue) -> None:
        segment, offset, _ = self.prepared.place_of[value.storage]
        cell.array = self._array(value.index)
        cell.memory = self.memory[segment]
        cell.byte_offset = offset

    def _outputs(self) -> dict[str, Array]:
        """Copy outputs that share memory with other tensors, so that the rest can be freed."""
        outputs: dict[str, Array] = {}
        for name in self.bound.entry.outputs:
            value = self.bound.values[name]
            array = self._array(value.index)
            place = self.prepared.place_of.get(value.storage)
            alone = place is not None and padded(place[2]) == self.memory[place[0]].nbytes
            outputs[name] = array if alone else array.copy()
        return outputs
