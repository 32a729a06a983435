"""State: tensors that survive a run, and where their copies are."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from tapml.execute.arrays import Array, Bytes, allocate, flat_bytes, window
from tapml.execute.segments import padded
from tapml.graph.plan import GraphPlan, TensorSpecification
from tapml_targets.dtype import dtype
from tapml_targets.errors import TapmlError

if TYPE_CHECKING:
    from tapml.execute.device import DeviceBuffer, DeviceMemory


@dataclass(eq=False)
class StateCell:
    """A state tensor: never written again, so that runs, snapshots and recorders may share it.

    Attributes
    ----------
    array
        Its copy on the host, or None.
    memory, byte_offset
        The host memory that copy lies in, with other state of the same run.
    buffer
        Its copy on the device, or None; one of the two is there.
    """

    array: Array | None = None
    memory: Bytes | None = None
    byte_offset: int = 0
    buffer: DeviceBuffer | None = None

    @staticmethod
    def of(array: Array) -> StateCell:
        """A cell of its own for a contiguous, aligned array."""
        return StateCell(array, flat_bytes(array))

    def fetch(self, spec: TensorSpecification, device: DeviceMemory | None) -> Array:
        """The content on the host."""
        if self.array is None:
            if self.buffer is None or device is None:
                raise TapmlError(f"state {spec.name} is neither on the host nor on a device")
            memory = allocate(self.buffer.nbytes)
            memory[:] = np.frombuffer(device.read(self.buffer), np.uint8)
            self.array, self.memory = window(memory, 0, spec.shape, spec.dtype), memory
        return self.array


def zero_state(plan: GraphPlan) -> dict[str, StateCell]:
    """All state of a plan as zeros, laid as runs lay it."""
    sizes = {
        name: padded(dtype(spec.dtype).nbytes(prod(spec.shape)))
        for name, spec in plan.state.items()
    }
    memory = allocate(sum(sizes.values()))
    cells: dict[str, StateCell] = {}
    offset = 0
    for name, spec in plan.state.items():
        array = window(memory, offset, spec.shape, spec.dtype)
        cells[name] = StateCell(array, memory, offset)
        offset += sizes[name]
    return cells
