"""Computes the fewest bytes that a placement has to move, without planning a run.

Runs are compared with this minimum, so it shares no code with :mod:`tapml.execute.program`. A
storage has new content after each call site that writes to it, at the place where that site ran.
The content moves at most once to each other place that reads it before the next write, from device
to device through the host. Inputs start and outputs end on the host; state stays where a run left
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from tapml.execute.binding import BoundEntry

_HOST: Final = "host"


@dataclass(frozen=True)
class MinimumMoves:
    """The minimum traffic of one run of an entry.

    Attributes
    ----------
    nbytes
        Bytes between host and devices, both ways, excluding weights.
    weights
        Weights that each device reads.
    state_on_entry
        Per state tensor, the places that hold its content from before the run.
    state_after
        The same for its content after the run, which is the same if nothing wrote it.
    """

    nbytes: int
    weights: Mapping[str, frozenset[str]]
    state_on_entry: Mapping[str, frozenset[str]]
    state_after: Mapping[str, frozenset[str]]


@dataclass
class _Content:
    """One content of a storage: where it was made and where it is read."""

    home: Set[str]
    read: set[str] = field(default_factory=set)

    @property
    def places(self) -> frozenset[str]:
        moved = self.read - self.home
        between = {_HOST} if moved and _HOST not in self.home else set()
        return frozenset(self.home | self.read | between)


def minimum_moves(
    bound: BoundEntry, placement: Mapping[str, str], state: Mapping[str, Set[str]]
) -> MinimumMoves:
    """The bytes that one run has to move.

    Parameters
    ----------
    bound
        Entry and shapes.
    placement
        The device of each call site that runs on one; all others run on the host.
    state
        Places of each state tensor before the run: ``host``, devices or both.
    """
    contents = _contents(bound, placement, state)
    for name in bound.entry.outputs:
        contents[bound.values[name].storage][-1].read.add(_HOST)
    return MinimumMoves(
        nbytes=sum(
            bound.storages[name].nbytes * len(each.places - each.home)
            for name, found in contents.items()
            if bound.storages[name].lifetime != "weight"
            for each in found
        ),
        weights=_weights(bound, contents),
        state_on_entry={
            name: contents[bound.values[value].storage][0].places
            for name, value in bound.before.items()
        },
        state_after={
            name: contents[bound.values[value].storage][-1].places
            for name, value in bound.after.items()
        },
    )


def _weights(
    bound: BoundEntry, contents: Mapping[str, Sequence[_Content]]
) -> dict[str, frozenset[str]]:
    """The weights that are read on each device."""
    read: dict[str, set[str]] = {}
    for name, found in contents.items():
        if bound.storages[name].lifetime == "weight":
            for place in found[0].read - {_HOST}:
                read.setdefault(place, set()).add(name)
    return {place: frozenset(names) for place, names in read.items()}


def _contents(
    bound: BoundEntry, placement: Mapping[str, str], state: Mapping[str, Set[str]]
) -> dict[str, list[_Content]]:
    """The contents of every storage over a run, in order."""
    begun = {bound.values[value].storage: state[name] for name, value in bound.before.items()}
    contents = {
        name: [_Content(begun.get(name, _home(storage.lifetime)))]
        for name, storage in bound.storages.items()
    }
    for call in bound.calls:
        place = placement.get(call.step.site, _HOST)
        for index in call.reads:
            contents[bound.storage_of(index)][-1].read.add(place)
        for index in call.writes:
            name = bound.storage_of(index)
            old = contents[name][-1]
            if old.places and bound.by_index[index].nbytes < bound.storages[name].nbytes:
                # A partial write keeps the rest of the old content, which has to be there.
                old.read.add(place)
        for name in {bound.storage_of(index) for index in call.writes}:
            contents[name].append(_Content(frozenset({place})))
    return contents


def _home(lifetime: str) -> frozenset[str]:
    """The places of a storage's content before any call site writes to it."""
    return frozenset({_HOST}) if lifetime in ("weight", "input") else frozenset()
