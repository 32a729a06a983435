"""Computes the memory that a run takes on the target."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tapml.execute.binding import BoundEntry
from tapml.execute.place import DEVICE
from tapml.execute.program import Program
from tapml.execute.schedule import DeviceCall, DeviceCommands

STATE_COPIES = 3
"""Most copies of a state tensor: zeros, before a run and after it."""


@dataclass(frozen=True)
class Footprint:
    """Peak bytes on the target."""

    weights: int = 0
    state: int = 0
    activations: int = 0

    @property
    def total(self) -> int:
        """The sum."""
        return self.weights + self.state + self.activations

    def __str__(self) -> str:
        return (
            f"{self.total} bytes (weights {self.weights}, state {self.state}, "
            f"activations {self.activations})"
        )


def footprint_of(programs: Iterable[Program]) -> Footprint:
    """The peak over runs of these programs, in sequence on the same weights and state."""
    weights: dict[str, int] = {}
    state: dict[str, int] = {}
    activations = 0
    for program in programs:
        bound = program.bound
        own = _state_storages(bound)
        for name in program.device_weights.get(DEVICE, ()):
            weights[name] = bound.storages[name].nbytes
        for storage in _device_storages(program):
            if storage in own:
                state[own[storage]] = bound.storages[storage].nbytes
        activations = max(activations, _peak(program, frozenset(own)))
    return Footprint(sum(weights.values()), STATE_COPIES * sum(state.values()), activations)


def largest_footprint(bounds: Iterable[BoundEntry]) -> Footprint:
    """An upper bound for every placement of these entries' call sites."""
    weights: dict[str, int] = {}
    state: dict[str, int] = {}
    activations = 0
    for bound in bounds:
        own = _state_storages(bound)
        others = 0
        for storage in bound.storages.values():
            if storage.lifetime == "weight":
                weights[storage.name] = storage.nbytes
            elif storage.name in own:
                state[own[storage.name]] = storage.nbytes
            else:
                others += storage.nbytes
        activations = max(activations, others)
    return Footprint(sum(weights.values()), STATE_COPIES * sum(state.values()), activations)


def _state_storages(bound: BoundEntry) -> dict[str, str]:
    """Storages that hold state before or after a run, with the state's name."""
    return {
        bound.values[value].storage: name
        for pairs in (bound.before, bound.after)
        for name, value in pairs.items()
    }


def _commands(program: Program) -> list[frozenset[str]]:
    """The storages that each of the target's commands uses, in order."""
    return [
        frozenset(program.bound.storage_of(index) for index in command.call.arguments)
        if isinstance(command, DeviceCall)
        else frozenset({command.storage})
        for action in program.actions
        if isinstance(action, DeviceCommands) and action.place == DEVICE
        for command in action.commands
    ]


def _device_storages(program: Program) -> frozenset[str]:
    return frozenset().union(*_commands(program))


def _peak(program: Program, state: frozenset[str]) -> int:
    """Peak bytes of activations on the target."""
    storages = program.bound.storages
    commands = _commands(program)
    last = {storage: position for position, used in enumerate(commands) for storage in used}
    live: set[str] = set()
    peak = held = 0
    for position, used in enumerate(commands):
        new = {storage for storage in used - live - state if storages[storage].lifetime != "weight"}
        live |= new
        held += sum(storages[storage].nbytes for storage in new)
        peak = max(peak, held)
        gone = {storage for storage in used & live if last[storage] == position}
        live -= gone
        held -= sum(storages[storage].nbytes for storage in gone)
    return peak
