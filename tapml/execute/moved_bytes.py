"""What hybrid runs really move between host and device, held against the fewest bytes."""

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
    """Bytes between host and device, both ways, and the fewest that do."""

    runs: int = 0
    moved: int = 0
    minimum: int = 0

    def add(self, other: Moved) -> None:
        """Count another's as well."""
        self.runs += other.runs
        self.moved += other.moved
        self.minimum += other.minimum

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


class CountedExecutor:
    """Runs an executor's plan and counts (:class:`tapml.execute.generate.Runner`).

    Where state lies is followed here, by what a run's contract says, and not asked of the executor:
    the copy of a zero state that a device got once is there for every later reset, and so on.

    Parameters
    ----------
    executor
        Nobody else may run it, reset it or move its state in the meantime.

    Attributes
    ----------
    moved
        By entry, weights apart: these are under ``weights``, each due once.
    """

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.moved: dict[str, Moved] = {}
        self._weights: set[str] = set()
        self._zeros = {name: _Copies(_HOST) for name in executor.plan.state}
        self._state = dict(self._zeros)
        self._bound: dict[tuple[str, tuple[tuple[str, int], ...]], BoundEntry] = {}
        self._fewest: dict[tuple[object, ...], MinimumMoves] = {}

    def take_counts(self) -> dict[str, Moved]:
        """The counts so far; the next begin at zero."""
        counts, self.moved = self.moved, {}
        return counts

    def forget_device(self) -> None:
        """Nothing is on the device any more."""
        self._weights.clear()
        for copies in (*self._zeros.values(), *self._state.values()):
            copies.places = copies.places & _HOST or _HOST

    def reset(self) -> None:
        """Set the state to zero."""
        self.executor.reset()
        self._state = dict(self._zeros)

    def run(self, entry: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run an entry as :meth:`Executor.run` does."""
        device = self.executor.device
        if device is None:
            return self.executor.run(entry, inputs)
        moved = device.bytes_written + device.bytes_read
        weights = device.weight_bytes_written
        try:
            outputs = self.executor.run(entry, inputs)
        except BaseException:
            self.forget_device()
            raise
        fewest = self._minimum(entry, inputs)
        uploaded = device.weight_bytes_written - weights
        total = device.bytes_written + device.bytes_read - moved
        self._add(entry, Moved(1, total - uploaded, fewest.nbytes))
        new = fewest.weights - self._weights
        self._weights |= new
        self._add(WEIGHTS, Moved(1, uploaded, sum(self._weight_bytes(name) for name in new)))
        self._follow(fewest, entry)
        return outputs

    def _minimum(self, entry: str, inputs: Mapping[str, Array]) -> MinimumMoves:
        plan, sites = self.executor.plan, self.executor.device_sites
        symbols = bind_symbols(entry_of(plan, entry), inputs)
        key = (entry, tuple(sorted(symbols.items())))
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = bind_entry(plan, entry, symbols)
        places = {name: copies.places for name, copies in self._state.items()}
        known = (key, sites, tuple(sorted((name, tuple(sorted(p))) for name, p in places.items())))
        if known not in self._fewest:
            self._fewest[known] = minimum_moves(bound, sites, places)
        return self._fewest[known]

    def _follow(self, fewest: MinimumMoves, entry: str) -> None:
        """Where state lies after a run: content that was read elsewhere has a copy there."""
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
    """Where one content of a state tensor lies; shared by all that hold it."""

    places: Set[str]
