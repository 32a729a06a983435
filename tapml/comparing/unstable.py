"""Layers that draw random numbers, or give other values in a second run on one backend.

They are found first, listed, and not accused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from tapml.backends.runner import Array, Node
from tapml.comparing.localization import deviation_of, is_beyond_rounding

Hidden: TypeAlias = Mapping[str, list[Array]]
"""What every node gave, by its name."""
_DRAWING: Final = ("Bernoulli", "Multinomial")


def draws(node: Node) -> bool:
    """Whether a node makes random numbers: with one seed, two libraries still draw others."""
    return node.kind.startswith("Random") or node.kind in _DRAWING


def where_unstable(
    nodes: Sequence[Node], unstable: Sequence[str], states: Mapping[str, tuple[Hidden, ...]]
) -> str:
    """The layers where it starts, each with the backends on which a second run differs."""
    found = set(unstable)
    said = []
    for node in nodes:
        if node.name in found and found.isdisjoint(name for name, _ in node.sources):
            where = [name for name, runs in states.items() if is_unstable(runs, node.name)]
            said.append(f"{node.name} ({', '.join(where) or 'drawn'})")
    return ", ".join(said)


def is_unstable(runs: tuple[Hidden, ...], node: str) -> bool:
    """Whether a node gave other values in a second run; `runs` are both, as a backend made them."""
    one, other = (each.get(node) for each in runs)
    return one is not None and other is not None and deviation_of(one, other)[0] > 0 and (
        is_beyond_rounding(one, other)
    )  # fmt: skip
