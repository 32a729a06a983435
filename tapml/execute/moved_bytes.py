"""Bytes that hybrid runs move between host and devices, compared with the minimum."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass
from typing import Any, Final

from tapml.execute.arrays import Array
from tapml.execute.binding import BoundEntry, bind_entry, bind_symbols, entry_of
from tapml.execute.executor import Executor
from tapml.execute.minimum_moves import MinimumMoves, minimum_moves

_HOST: Final = frozenset({"host"})
WEIGHTS: Final = "weights"


@dataclass
class Moved:
    """Bytes between host and devices, both ways, and the minimum."""

    runs: int = 0
    moved: int = 0
    minimum: int = 0

    def add(self, other: Moved) -> None:
        """Add another count."""
        self.runs += other.runs
        self.moved += other.moved
        self.minimum += other.minimum

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


class CountedExecutor:
    """Runs an executor's plan and counts traffic (:class:`tapml.execute.generate.Runner`).

    The places of state are tracked here from a run's contract, independently of the executor: for
    instance, a zero state that a device received once is there for every later reset.

    Parameters
    ----------
    executor
        Must not be run, reset or changed by others in the meantime.

    Attributes
    ----------
    moved
        By entry, without weights; these are under ``weights`` and due once each.
    """

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.moved: dict[str, Moved] = {}
        self._weights: set[tuple[str, str]] = set()
        self._zeros = {name: _Copies(_HOST) for name in executor.plan.state}
        self._state = dict(self._zeros)
        self._bound: dict[tuple[str, tuple[tuple[str, int], ...]], BoundEntry] = {}
        self._fewest: dict[tuple[object, ...], MinimumMoves] = {}

    def take_counts(self) -> dict[str, Moved]:
        """Return the counts and reset them to zero."""
        counts, self.moved = self.moved, {}
        return counts

    def forget_device(self) -> None:
        """Record that nothing is on a device any more."""
        self._weights.clear()
        for copies in (*self._zeros.values(), *self._state.values()):
            copies.places = copies.places & _HOST or _HOST

    def reset(self) -> None:
        """Set the state to zero."""
        self.executor.reset()
        self._state = dict(self._zeros)

    def run(self, entry: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run an entry as :meth:`Executor.run` does."""
        if not self.executor.devices:
            return self.executor.run(entry, inputs)
        moved, weights = self._so_far()
        try:
            outputs = self.executor.run(entry, inputs)
        except BaseException:
            self.forget_device()
            raise
        fewest = self._minimum(entry, inputs)
        moved_now, weights_now = self._so_far()
        uploaded, total = weights_now - weights, moved_now - moved
        self._add(entry, Moved(1, total - uploaded, fewest.nbytes))
        needed = {(place, name) for place, names in fewest.weights.items() for name in names}
        new = needed - self._weights
        self._weights |= new
        self._add(WEIGHTS, Moved(1, uploaded, sum(self._weight_bytes(name) for _, name in new)))
        self._follow(fewest, entry)
        return outputs

    def _so_far(self) -> tuple[int, int]:
        """Bytes moved by all devices, and those of them that were weights."""
        devices = self.executor.devices.values()
        moved = sum(each.bytes_written + each.bytes_read for each in devices)
        return moved, sum(each.weight_bytes_written for each in devices)

    def _minimum(self, entry: str, inputs: Mapping[str, Array]) -> MinimumMoves:
        plan, placement = self.executor.plan, self.executor.placement
        symbols = bind_symbols(entry_of(plan, entry), inputs)
        key = (entry, tuple(sorted(symbols.items())))
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = bind_entry(plan, entry, symbols)
        places = {name: copies.places for name, copies in self._state.items()}
        where = frozenset(placement.items())
        known = (key, where, tuple(sorted((name, tuple(sorted(p))) for name, p in places.items())))
        if known not in self._fewest:
            self._fewest[known] = minimum_moves(bound, placement, places)
        return self._fewest[known]

    def _follow(self, fewest: MinimumMoves, entry: str) -> None:
        """Track state after a run: content that was read elsewhere has a copy there."""
        for name, places in fewest.state_on_entry.items():
            self._state[name].places = places
        for binding in self.executor.plan.entries[entry].state:
            values = self.executor.plan.entries[entry].values
            if values[binding.before].storage != values[binding.after].storage:
                self._state[binding.state] = _Copies(fewest.state_after[binding.state])

    def _weight_bytes(self, name: str) -> int:
        return self.executor.weights[name].nbytes

    def _add(self, name: str, counts: Moved) -> None:
        self.moved.setdefault(name, Moved()).add(counts)


@dataclass
class _Copies:
    """The places of one content of a state tensor; shared by all its holders."""

    places: Set[str]
