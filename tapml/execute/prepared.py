"""Prepares a program to run: weights as arrays, call sites as functions, tensors as windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tapml.execute.arrays import Array, window
from tapml.execute.binding import BoundCall, BoundValue
from tapml.execute.place import Place
from tapml.execute.program import Program
from tapml.execute.schedule import DeviceCall, DeviceCommands, HostCalls
from tapml_targets.dtype import dtype

if TYPE_CHECKING:
    from tapml.execute.interfaces import Reference

Pick: TypeAlias = Callable[[list[Any]], tuple[Any, ...]]
PreparedCall: TypeAlias = tuple[Callable[..., None], Pick, BoundCall]


class PreparedProgram:
    """A program with its weights as arrays and its host call sites as functions.

    `weights` are contiguous and aligned; `reference` supplies the host's operators.
    """

    def __init__(
        self, program: Program, weights: Mapping[str, Array], reference: Reference
    ) -> None:
        self.program = program
        self.weights = weights
        bound = program.bound
        self.arrays: list[Array | None] = [None] * len(bound.by_index)
        for value in bound.by_index:
            if bound.storages[value.storage].lifetime == "weight":
                self.arrays[value.index] = window(
                    weights[value.storage], value.byte_offset, value.shape, value.dtype
                )
        self.host_calls = {
            id(action): tuple(
                (_function(reference, call), _picker(call), call) for call in action.calls
            )
            for action in program.actions
            if isinstance(action, HostCalls)
        }
        self.windows = _windows(program)
        self.place_of = {
            storage: (segment.index, offset, bound.storages[storage].nbytes)
            for segment in program.segments
            for storage, offset in segment.offsets.items()
        }
        self.inputs: dict[int, list[tuple[str, int]]] = {}
        for name in bound.entry.inputs:
            value = bound.values[name]
            if value.storage in self.place_of:
                segment_index = self.place_of[value.storage][0]
                self.inputs.setdefault(segment_index, []).append((name, value.index))
        self.before = {
            bound.values[value].storage: (
                state,
                [v for v in bound.by_index if v.storage == bound.values[value].storage],
            )
            for state, value in bound.before.items()
        }
        self.last_device_use = _last_device_use(program)


def _windows(
    program: Program,
) -> dict[int, tuple[tuple[int, int, tuple[int, ...], np.dtype[Any]], ...]]:
    """The arrays in each segment: of values that are used, not of every intermediate view."""
    bound = program.bound
    taken = {index for call in bound.calls for index in call.arguments}
    named = (*bound.entry.inputs, *bound.entry.outputs, *bound.before.values())
    taken |= {bound.values[name].index for name in (*named, *bound.after.values())}
    inside: dict[str, list[BoundValue]] = {}
    for value in bound.by_index:
        if value.index in taken:
            inside.setdefault(value.storage, []).append(value)
    return {
        segment.index: tuple(
            (value.index, offset + value.byte_offset, value.shape, _numpy(value))
            for storage, offset in segment.offsets.items()
            for value in inside.get(storage, ())
        )
        for segment in program.segments
    }


def _function(reference: Reference, call: BoundCall) -> Callable[..., None]:
    function = reference[call.step.operator]
    if not call.symbols:
        return function
    symbols = dict(call.symbols)

    def with_symbols(*tensors: Any) -> None:
        function(*tensors, symbols=symbols)

    return with_symbols


def _picker(call: BoundCall) -> Pick:
    if len(call.arguments) == 1:
        (only,) = call.arguments
        return lambda arrays: (arrays[only],)
    return itemgetter(*call.arguments)


def _numpy(value: BoundValue) -> np.dtype[Any]:
    return np.dtype(dtype(value.dtype).numpy_name)


def _last_device_use(program: Program) -> dict[int, tuple[str, ...]]:
    """Storages whose memory on its device is free after a command, by the command's identity."""
    bound = program.bound
    kept = {bound.values[name].storage for name in (*bound.before.values(), *bound.after.values())}
    seen: dict[Place, set[str]] = {}
    result: dict[int, tuple[str, ...]] = {}
    commands = [
        command
        for action in program.actions
        if isinstance(action, DeviceCommands)
        for command in action.commands
    ]
    for command in reversed(commands):
        used = (
            {bound.storage_of(index) for index in command.call.arguments}
            if isinstance(command, DeviceCall)
            else {command.storage}
        )
        own = seen.setdefault(command.place, set(kept))
        result[id(command)] = tuple(used - own)
        own |= used
    return result
