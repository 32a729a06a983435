"""Finds the calls that may write a state tensor's new value over the old one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tvm
import tvm_ffi
from msgspec import structs
from tvm import tirx
from tvm.s_tir.stmt import SBlock

from tapml.importing.operators import OperatorTable
from tapml.plan.graph_plan import CallStep, Entry, Step, ViewStep


def with_donations(entry: Entry, table: OperatorTable) -> Entry:
    """The entry with donations of its state marked.

    A call donates a state's old value to its new one if it is the last step that reads the old
    value, and reads each element only where it writes the same element of the new value.
    """
    after = {binding.after: binding.before for binding in entry.state}
    last_read: dict[str, int] = {}
    for index, step in enumerate(entry.steps):
        names = (step.source,) if isinstance(step, ViewStep) else step.arguments
        for name in names:
            last_read[entry.values[name].storage] = index
    kept = {entry.values[name].storage for name in entry.outputs}
    steps: list[Step] = []
    for index, step in enumerate(entry.steps):
        if isinstance(step, CallStep):
            function = table.function(step.operator)
            pairs = []
            for written in step.arguments:
                before = after.get(written)
                if before is None or before not in step.arguments or before == written:
                    continue
                storage = entry.values[before].storage
                same = (step.arguments.index(before), step.arguments.index(written))
                free = last_read[storage] == index and storage not in kept
                if free and step.arguments.count(before) == 1 and elementwise(function, *same):
                    pairs.append((before, written))
            steps.append(structs.replace(step, donates=tuple(pairs)) if pairs else step)
        else:
            steps.append(step)
    return replace(entry, steps=tuple(steps))


def elementwise(function: Any, read: int, written: int) -> bool:
    """Whether a function reads each element of one parameter only to write that of another.

    Conservative: both must be accessed in one block, at the same spatial indices, and each element
    must be written once.
    """
    source, result = function.params[read], function.params[written]
    found: list[Any] = []
    tvm_ffi.structural_walk(function.body, (SBlock, found.append))
    blocks = [block for block in found if block.name_hint != "root"]
    touching = [block for block in blocks if _accesses(block.body, source)]
    writing = [block for block in blocks if _accesses(block.body, result)]
    if len(touching) != 1 or len(writing) != 1 or not touching[0].same_as(writing[0]):
        return False
    block = touching[0]
    spatial = [variable.var for variable in block.iter_vars if int(variable.iter_type) == 0]
    if len(spatial) != len(block.iter_vars) or block.init is not None:
        return False
    places = [*_accesses(block.body, source), *_accesses(block.body, result)]
    first = places[0]
    # Every spatial variable indexes the result, so no element is written twice.
    once = all(any(index.same_as(variable) for index in first) for variable in spatial)
    return once and all(tvm_ffi.structural_equal(place, first) for place in places[1:])


def _accesses(body: Any, buffer: Any) -> list[Any]:
    """The indices of every load from and store to a buffer."""
    found: list[Any] = []

    def load(node: Any) -> None:
        if node.source.same_as(buffer):
            found.append(node.indices)

    def store(node: Any) -> None:
        if node.buffer.same_as(buffer):
            found.append(node.indices)

    tvm_ffi.structural_walk(body, [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store)])
    return found
