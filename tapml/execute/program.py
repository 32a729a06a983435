"""What one run does, in order: a bound entry, a placement, and where the state is.

Planned once and run many times, so that a run decides nothing. Values move between host and device
when a call site needs them on the other side and never twice to the same place; what a run leaves
behind (outputs on the host, state where it was last written) is part of the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, TypeAlias

from tapml.execute.binding import BoundCall, BoundEntry
from tapml.execute.schedule import (
    Action,
    DeviceCall,
    DeviceCommands,
    Download,
    HostCall,
    Observe,
    Operation,
    Upload,
    schedule,
)
from tapml.execute.segments import Segment, Span, lay_out
from tapml_targets.errors import InputError

Place: TypeAlias = Literal["host", "device"]
HOST: Final = "host"
DEVICE: Final = "device"


@dataclass(frozen=True, eq=False)
class Program:
    """The actions of a run; equal to itself only, so that it can be a key.

    Attributes
    ----------
    bound
        Entry and shapes.
    segments
        Host memory of everything but weights and the state on entry.
    actions
        In order.
    device_weights
        Storages that must be on the device before the run.
    state_places
        Where the state is valid after the run, by state name.
    """

    bound: BoundEntry
    segments: tuple[Segment, ...]
    actions: tuple[Action, ...]
    device_weights: frozenset[str]
    state_places: Mapping[str, frozenset[Place]]

    @cached_property
    def device_operators(self) -> frozenset[str]:
        """Operators that the run calls on the device."""
        return frozenset(
            command.call.step.operator
            for action in self.actions
            if isinstance(action, DeviceCommands)
            for command in action.commands
            if isinstance(command, DeviceCall)
        )

    @property
    def bytes_moved(self) -> int:
        """Bytes one run copies between host and device, weights apart."""
        return sum(
            self.bound.storages[command.storage].nbytes
            for action in self.actions
            if isinstance(action, DeviceCommands)
            for command in action.commands
            if not isinstance(command, DeviceCall)
        )


def plan_program(
    bound: BoundEntry,
    on_device: Set[str],
    state: Mapping[str, frozenset[Place]],
    *,
    observed: bool = False,
) -> Program:
    """Decide what a run does.

    Parameters
    ----------
    bound
        Entry and shapes.
    on_device
        Call sites that run on the device; all others run on the host.
    state
        Where each state tensor is valid before the run.
    observed
        Whether the tensors of every call site are shown on the host.

    Raises
    ------
    InputError
        If a call site writes a weight or the state on entry in place.
    """
    moves = _Moves(bound, state)
    for call in bound.calls:
        moves.call(call, on_device=call.step.site in on_device)
        if observed:
            moves.observe(call)
    return moves.finish()


@dataclass
class _Moves:
    """Follows where each storage is valid while the operations are laid down."""

    bound: BoundEntry
    state: Mapping[str, frozenset[Place]]
    operations: list[Operation] = field(default_factory=list)
    valid: dict[str, set[Place]] = field(default_factory=dict)
    device_weights: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._before = {
            self.bound.values[value].storage: name for name, value in self.bound.before.items()
        }
        for name, value in self.bound.before.items():
            self.valid[self.bound.values[value].storage] = set(self.state[name])
        for value in self.bound.entry.inputs:
            self.valid[self.bound.values[value].storage] = {HOST}
        for storage in self.bound.storages.values():
            if storage.lifetime == "weight":
                self.valid[storage.name] = {HOST}

    def call(self, call: BoundCall, *, on_device: bool) -> None:
        place: Place = DEVICE if on_device else HOST
        for index in call.reads:
            self.need(self.bound.storage_of(index), place)
        for index in call.writes:
            value = self.bound.by_index[index]
            storage = self.bound.storages[value.storage]
            if storage.lifetime == "weight" or storage.name in self._before:
                raise InputError(
                    f"call site {call.step.site} writes {value.name} in place, a {storage.lifetime}"
                    ": import the model with in-place updates turned into new tensors"
                )
            if value.nbytes < storage.nbytes and self.valid.get(storage.name):
                self.need(storage.name, place)
        self.operations.append(DeviceCall(call) if on_device else HostCall(call))
        for index in call.writes:
            self.valid[self.bound.storage_of(index)] = {place}

    def observe(self, call: BoundCall) -> None:
        for index in call.arguments:
            self.need(self.bound.storage_of(index), HOST)
        self.operations.append(Observe(call))

    def need(self, storage: str, place: Place) -> None:
        places = self.valid.get(storage)
        if not places:
            raise InputError(
                f"entry {self.bound.entry.name} reads storage {storage} before it is written"
            )
        if place in places:
            return
        places.add(place)
        if place == HOST:
            self.operations.append(Download(storage))
        elif self.bound.storages[storage].lifetime == "weight":
            self.device_weights.add(storage)
        else:
            self.operations.append(Upload(storage))

    def finish(self) -> Program:
        for name in self.bound.entry.outputs:
            self.need(self.bound.values[name].storage, HOST)
        spans = self._spans()
        segments = lay_out(self.bound, spans)
        return Program(
            bound=self.bound,
            segments=segments,
            actions=schedule(self.operations, segments),
            device_weights=frozenset(self.device_weights),
            state_places={
                name: frozenset(self.valid[self.bound.values[value].storage])
                for name, value in self.bound.after.items()
            },
        )

    def _spans(self) -> dict[str, Span]:
        """First write, last write and last use on the host of each storage that needs memory."""
        spans: dict[str, Span] = {}
        end = len(self.operations)
        given = {
            self.bound.values[value].storage
            for name, value in self.bound.before.items()
            if HOST in self.state[name]
        }

        def touch(storage: str, position: int, *, write: bool = False) -> None:
            if storage in given or self.bound.storages[storage].lifetime == "weight":
                return
            span = spans.get(storage)
            if span is None:
                spans[storage] = Span(position, position, position)
            elif write:
                spans[storage] = Span(span.first, position, position)
            else:
                spans[storage] = Span(span.first, span.last_write, position)

        for name in self.bound.entry.inputs:
            touch(self.bound.values[name].storage, 0, write=True)
        for position, operation in enumerate(self.operations):
            match operation:
                case HostCall(call):
                    for index in call.reads:
                        touch(self.bound.storage_of(index), position)
                    for index in call.writes:
                        touch(self.bound.storage_of(index), position, write=True)
                case Observe(call):
                    for index in call.arguments:
                        touch(self.bound.storage_of(index), position)
                case Download(storage):
                    touch(storage, position, write=True)
                case Upload(storage):
                    touch(storage, position)
                case DeviceCall():
                    pass
        for name in (*self.bound.entry.outputs, *self.bound.after.values()):
            storage_name = self.bound.values[name].storage
            if HOST in self.valid[storage_name]:
                touch(storage_name, end)
        return spans
