"""State: tensors that survive a run, and the places of their copies."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from tapml.execute.arrays import Array, Bytes, allocate, window
from tapml.execute.place import Place
from tapml.execute.segments import padded
from tapml.plan.graph_plan import GraphPlan
from tapml_targets.dtype import dtype

if TYPE_CHECKING:
    from tapml.execute.device import DeviceBuffer


@dataclass(eq=False)
class StateCell:
    """A state tensor. It is never modified, so runs, snapshots and recorders may share it.

    Attributes
    ----------
    array
        Its copy on the host, or None.
    memory, byte_offset
        The host memory of that copy, shared with other state of the same run.
    buffers
        Its copies on devices, by place; at least one copy exists.
    """

    array: Array | None = None
    memory: Bytes | None = None
    byte_offset: int = 0
    buffers: dict[Place, DeviceBuffer] = field(default_factory=dict)


def zero_state(plan: GraphPlan) -> dict[str, StateCell]:
    """All state of a plan as zeros, in the layout of runs."""
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
