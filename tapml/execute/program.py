"""Plans one run: a bound entry, a placement, and the places of the state.

Planned once and run many times, so that a run decides nothing. Values move between the host and the
devices when a call site needs them elsewhere, and at most once to each place; from one device to
another they pass through the host. The plan also fixes the final places (outputs on the host, state
where it was last written).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tapml.execute.binding import BoundCall, BoundEntry
from tapml.execute.place import HOST, Place
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


@dataclass(frozen=True, eq=False)
class Program:
    """The actions of a run; hashed by identity.

    Attributes
    ----------
    bound
        Entry and shapes.
    segments
        Host memory of everything except weights and the state on entry.
    actions
        In order.
    device_weights
        Storages that must be on a device before the run, by device.
    state_places
        Places where the state is valid after the run, by state name.
    """

    bound: BoundEntry
    segments: tuple[Segment, ...]
    actions: tuple[Action, ...]
    device_weights: Mapping[Place, frozenset[str]]
    state_places: Mapping[str, frozenset[Place]]

    @cached_property
    def device_operators(self) -> Mapping[Place, frozenset[str]]:
        """Operators that the run calls, by device."""
        found: defaultdict[Place, set[str]] = defaultdict(set)
        for action in self.actions:
            if isinstance(action, DeviceCommands):
                found[action.place] |= {
                    command.call.step.operator
                    for command in action.commands
                    if isinstance(command, DeviceCall)
                }
        return {place: frozenset(names) for place, names in found.items()}


def plan_program(
    bound: BoundEntry,
    placement: Mapping[str, Place],
    state: Mapping[str, frozenset[Place]],
    *,
    observed: bool = False,
) -> Program:
    """Plan a run.

    Parameters
    ----------
    bound
        Entry and shapes.
    placement
        The device of each call site that runs on one; all others run on the host.
    state
        Places where each state tensor is valid before the run.
    observed
        Whether an observer needs every call site's tensors on the host.

    Raises
    ------
    InputError
        If a call site writes a weight or the state on entry in place.
    """
    moves = _Moves(bound, state)
    for call in bound.calls:
        moves.call(call, placement.get(call.step.site, HOST))
        if observed:
            moves.observe(call)
    return moves.finish()


@dataclass
class _Moves:
    """Tracks where each storage is valid while operations are added."""

    bound: BoundEntry
    state: Mapping[str, frozenset[Place]]
    operations: list[Operation] = field(default_factory=list)
    valid: dict[str, set[Place]] = field(default_factory=dict)
    device_weights: defaultdict[Place, set[str]] = field(default_factory=lambda: defaultdict(set))

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

    def call(self, call: BoundCall, place: Place) -> None:
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
        self.operations.append(HostCall(call) if place == HOST else DeviceCall(call, place))
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
        if place == HOST:
            self.operations.append(Download(storage, min(places)))
        elif self.bound.storages[storage].lifetime == "weight":
            self.device_weights[place].add(storage)
        else:
            self.need(storage, HOST)
            self.operations.append(Upload(storage, place))
        places.add(place)

    def finish(self) -> Program:
        for name in self.bound.entry.outputs:
            self.need(self.bound.values[name].storage, HOST)
        spans = self._spans()
        segments = lay_out(self.bound, spans)
        return Program(
            bound=self.bound,
            segments=segments,
            actions=schedule(self.operations, segments),
            device_weights={
                place: frozenset(names) for place, names in self.device_weights.items()
            },
            state_places={
                name: frozenset(self.valid[self.bound.values[value].storage])
                for name, value in self.bound.after.items()
            },
        )

    def _spans(self) -> dict[str, Span]:
        """First write, last write and last host use of each storage that needs memory."""
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
