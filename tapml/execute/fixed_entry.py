"""An entry with static shapes: its inputs in one buffer, a run of it one recorded program."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from tapml.execute.arrays import Array, Bytes, allocate, window
from tapml.execute.device import DeviceBuffer, DeviceMemory
from tapml_rpc.recordings import MAX_PAYLOAD_BYTES, RemoteProgram
from tapml_rpc.remote import RemoteLibrary, RemoteTensor
from tapml_targets.dtype import dtype
from tapml_targets.expression import evaluate
from tapml_targets.library import EntryProgram, Parameter

if TYPE_CHECKING:
    from tapml_rpc.client import Batch, PendingCall

# Alignment of windows into device memory: no OpenCL device requires more than 4096 bits.
_WINDOW_ALIGNMENT: Final = 512
# Programs of one session need distinct names, even for different plans.
_numbers: Final = itertools.count(1)


class FixedEntry:
    """Memory for the inputs and outputs of an entry, and a program per arrangement of the state.

    Parameters
    ----------
    program
        An entry without symbols.
    library
        The loaded Library that has it.
    memory
        Allocates buffers.
    resident
        Returns the buffer of a weight, state tensor or its successor, by parameter.

    Attributes
    ----------
    inputs
        Holds all inputs consecutively, so that a run needs one write.
    written_apart
        Whether that write is too large for a program, and comes before it.
    """

    def __init__(
        self,
        program: EntryProgram,
        library: RemoteLibrary,
        memory: DeviceMemory,
        resident: Callable[[Parameter], DeviceBuffer],
    ) -> None:
        self._program = program
        self._library = library
        self._resident = resident
        self._programs: dict[int, RemoteProgram] = {}
        self._offsets: dict[str, int] = {}
        self._buffers: list[DeviceBuffer] = []
        self.outputs: dict[str, RemoteTensor] = {}
        given: dict[str, Parameter] = {}
        end = 0
        for parameter in program.parameters:
            kind, _, name = parameter.name.partition(":")
            shape, nbytes = _extents(parameter)
            if kind == "input":
                given[name] = parameter
                self._offsets[name] = end
                end += -(-nbytes // _WINDOW_ALIGNMENT) * _WINDOW_ALIGNMENT
            elif kind == "output":
                buffer = memory.acquire(nbytes)
                self._buffers.append(buffer)
                self.outputs[name] = RemoteTensor(buffer.remote, 0, shape, parameter.dtype)
        self.inputs = memory.acquire(end)
        self.written_apart = self.inputs.nbytes > MAX_PAYLOAD_BYTES
        self._staging = allocate(end)
        self._views = {
            name: window(self._staging, self._offsets[name], _extents(each)[0], each.dtype)
            for name, each in given.items()
        }

    def takes(self, inputs: Mapping[str, Array]) -> bool:
        """Whether these are the entry's inputs; errors in others are reported elsewhere."""
        views = self._views
        if inputs.keys() != views.keys():
            return False
        for name, array in inputs.items():
            view = views[name]
            if array.shape != view.shape or array.dtype != view.dtype:
                return False
        return True

    def fill(self, inputs: Mapping[str, Array]) -> Bytes:
        """The bytes to write to :attr:`inputs`; the next call may change them."""
        for name, view in self._views.items():
            view[...] = inputs[name]
        return self._staging

    def call(self, batch: Batch) -> PendingCall:
        """Run it on the present arrangement of the state's buffers, and measure its kernels."""
        return batch.call(self._library, self._program.name, self._tensors(), timed=True)

    def program(self, batch: Batch, arrangement: int) -> RemoteProgram:
        """A run as one program: write the inputs, call, read the outputs in order.

        Recorded on an arrangement's first use. Inputs that exceed the limit of a program are
        written before it: see :attr:`written_apart`.
        """
        program = self._programs.get(arrangement)
        if program is None:
            with batch.program(f"{self._program.name}#{next(_numbers)}") as program:
                if not self.written_apart:
                    program.write(self.inputs.remote, self.inputs.nbytes)
                program.call(self._library, self._program.name, self._tensors())
                for tensor in self.outputs.values():
                    program.read(tensor.buffer, tensor.nbytes)
            self._programs[arrangement] = program
        return program

    def _tensors(self) -> list[RemoteTensor]:
        return [self._tensor(parameter) for parameter in self._program.parameters]

    def _tensor(self, parameter: Parameter) -> RemoteTensor:
        kind, _, name = parameter.name.partition(":")
        if kind == "output":
            return self.outputs[name]
        shape = _extents(parameter)[0]
        if kind == "input":
            return RemoteTensor(self.inputs.remote, self._offsets[name], shape, parameter.dtype)
        return RemoteTensor(self._resident(parameter).remote, 0, shape, parameter.dtype)


def _extents(parameter: Parameter) -> tuple[tuple[int, ...], int]:
    shape = tuple(evaluate(extent, {}) for extent in parameter.shape)
    elements = 1
    for extent in shape:
        elements *= extent
    return shape, dtype(parameter.dtype).nbytes(elements)
