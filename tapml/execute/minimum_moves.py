"""The fewest bytes that have to move for a placement, found without planning a run.

Used to hold what runs really moved against; it shares nothing with :mod:`tapml.execute.program`.
A storage's content is new whenever a call site writes to it, and lies then where that site ran.
From there it has to get, once, to each other place where it is read before it is written again.
Inputs begin on the host and outputs have to end there; state stays where a run left it.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from tapml.execute.binding import BoundEntry

_HOST: Final = "host"
_DEVICE: Final = "device"


@dataclass(frozen=True)
class MinimumMoves:
    """What one run of an entry has to move.

    Attributes
    ----------
    nbytes
        Bytes between host and device, both ways, weights apart.
    weights
        Weights that the device reads.
    state_on_entry
        Per state tensor, where the content it had on entry lies after the run.
    state_after
        The same of the content the run leaves, which is that on entry where nothing wrote it.
    """

    nbytes: int
    weights: frozenset[str]
    state_on_entry: Mapping[str, frozenset[str]]
    state_after: Mapping[str, frozenset[str]]


@dataclass
class _Content:
    """One content of a storage: where it was made, where it is read."""

    home: Set[str]
    read: set[str] = field(default_factory=set)

    @property
    def places(self) -> frozenset[str]:
        return frozenset(self.home | self.read)


def minimum_moves(
    bound: BoundEntry, on_device: Set[str], state: Mapping[str, Set[str]]
) -> MinimumMoves:
    """Bytes one run has to move.

    Parameters
    ----------
    bound
        Entry and shapes.
    on_device
        Call sites that run on the device; all others run on the host.
    state
        Where each state tensor is before the run: ``host``, ``device`` or both.
    """
    contents = _contents(bound, on_device, state)
    for name in bound.entry.outputs:
        contents[bound.values[name].storage][-1].read.add(_HOST)
    return MinimumMoves(
        nbytes=sum(
            bound.storages[name].nbytes * len(each.read - each.home)
            for name, found in contents.items()
            if bound.storages[name].lifetime != "weight"
            for each in found
        ),
        weights=frozenset(
            name
            for name, found in contents.items()
            if bound.storages[name].lifetime == "weight" and _DEVICE in found[0].read
        ),
        state_on_entry={
            name: contents[bound.values[value].storage][0].places
            for name, value in bound.before.items()
        },
        state_after={
            name: contents[bound.values[value].storage][-1].places
            for name, value in bound.after.items()
        },
    )


def _contents(
    bound: BoundEntry, on_device: Set[str], state: Mapping[str, Set[str]]
) -> dict[str, list[_Content]]:
    """The contents of every storage over a run, in order."""
    begun = {bound.values[value].storage: state[name] for name, value in bound.before.items()}
    contents = {
        name: [_Content(begun.get(name, _home(storage.lifetime)))]
        for name, storage in bound.storages.items()
    }
    for call in bound.calls:
        place = _DEVICE if call.step.site in on_device else _HOST
        for index in call.reads:
            contents[bound.storage_of(index)][-1].read.add(place)
        for index in call.writes:
            name = bound.storage_of(index)
            old = contents[name][-1]
            if old.places and bound.by_index[index].nbytes < bound.storages[name].nbytes:
                # What this leaves of the old content has to be there.
                old.read.add(place)
        for name in {bound.storage_of(index) for index in call.writes}:
            contents[name].append(_Content(frozenset({place})))
    return contents


def _home(lifetime: str) -> frozenset[str]:
    """Where a storage has content before any call site writes to it."""
    return frozenset({_HOST}) if lifetime in ("weight", "input") else frozenset()
