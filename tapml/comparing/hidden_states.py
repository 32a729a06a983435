"""Hidden states of a comparison's backends: extracted once, and held as far as memory allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from tapml.backends.runner import Array, Node
from tapml.backends.steps import filled, step_of, taken, typed
from tapml.comparing.processes import BackendProcess
from tapml.comparing.unstable import Hidden

LARGEST_HELD_BYTES: Final = 2 << 30
_LEAST_HELD: Final = 2
"""Hidden states of so many runs are held, those of a pair, however large they are."""
Rows: TypeAlias = tuple[int, ...]
"""The instances that are run together."""
Holders: TypeAlias = tuple[str, ...]
"""The backend whose run gave each source of a node; empty for an input of the model."""


class HiddenStates:
    """By backend and instances.

    Parameters
    ----------
    processes
        By the backend's name.
    inputs
        All instances, by the input's name.
    """

    def __init__(
        self, processes: Mapping[str, BackendProcess], inputs: Mapping[str, Array]
    ) -> None:
        self._processes = processes
        self._inputs = inputs
        self.held: dict[tuple[str, Rows], tuple[Hidden, ...]] = {}

    def forget(self, name: str) -> None:
        """Let go of what is held of a backend: hidden states take gigabytes."""
        self.held = {key: each for key, each in self.held.items() if key[0] != name}

    def of(self, name: str, rows: Rows) -> tuple[Hidden, ...]:
        """What the nodes of a backend gave, and what is another in a second run."""
        key = name, rows
        if key in self.held:
            self.held[key] = self.held.pop(key)  # The last in order: used most recently.
            return self.held[key]
        self.held[key] = found = self._processes[name].hidden(self.inputs(rows))
        sizes = {each: _bytes(states) for each, states in self.held.items()}
        for oldest in list(sizes)[:-_LEAST_HELD]:
            if sum(sizes.values()) > LARGEST_HELD_BYTES:
                del self.held[oldest], sizes[oldest]
        return found

    def inputs(self, rows: Rows) -> dict[str, Array]:
        """As many instances as the model takes: nodes that read an input take no fewer alone."""
        steps = (step_of(each.inputs) for each in self._processes.values())
        step = next((each for each in steps if each is not None), None)
        inputs = next((each.inputs for each in self._processes.values() if each.inputs), [])
        return filled(typed(taken(self._inputs, list(rows)), inputs), step)

    def holders(self, node: Node, holder: str, rows: Rows) -> Holders | None:
        """Whose run gives a node its sources, or None if one was fused away in all."""
        self.of(holder, rows)
        # What the holder fused away another backend may have: the values need only be equal.
        others = (name for name, some in self.held if some == rows and name != holder)
        names = [holder, *others]
        found = []
        for source, place in node.sources:
            given = [""] if source in self._inputs else [
                name for name in names if len(self.held[name, rows][0].get(source, ())) > place
            ]  # fmt: skip
            if not given:
                return None
            found.append(given[0])
        return tuple(found)

    def sources(self, node: Node, holder: str, rows: Rows) -> list[Array] | None:
        """What a node read, in the runs of its :meth:`holders`; None without them."""
        holders = self.holders(node, holder, rows)
        if holders is None:
            return None
        row = self.inputs(rows)
        return [
            self.held[name, rows][0][source][place] if name else row[source]
            for name, (source, place) in zip(holders, node.sources, strict=True)
        ]


def _bytes(states: tuple[Hidden, ...]) -> int:
    return sum(each.nbytes for run in states for outputs in run.values() for each in outputs)
