"""Layers of 8 bits that round otherwise, such as down: each by less than a step, all together far.

Libraries are a step apart where a number lies between two codes, which is rare. So layers within
their tolerance are looked at again where the outputs are beyond it and nothing else tells why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from tapml.backends.runner import Array, Node
from tapml.comparing.localization import CODES, NodeDeviation, outvoted

STEPS: Final = 0.1
"""Of a mean deviation. Rounding down instead of to the nearest makes 0.5 where nothing is 0."""
_MOST: Final = 64


def are_steps_apart(first: Sequence[Array], second: Sequence[Array]) -> bool:
    """Whether codes of 8 bits are apart by more than :data:`STEPS` on average.

    Examples
    --------
    >>> codes = np.arange(100, dtype=np.int8)
    >>> are_steps_apart([codes], [codes - (codes % 5 == 0)])
    True
    """
    return any(
        one.dtype in CODES
        and one.shape == other.shape
        and one.size > 0
        and float(np.abs(np.subtract(one, other, dtype=np.float64)).mean()) > STEPS
        for one, other in zip(first, second, strict=False)
    )


def first_apart(
    graph: Sequence[NodeDeviation],
    backends: tuple[str, str],
    names: Sequence[str],
    alone: Callable[[str, Node], Sequence[Array] | None],
) -> tuple[Node, str] | None:
    """The first layer whose codes are steps apart on equal inputs, and whom a majority blames.

    `names` are all backends that run the model; `alone` gives what one makes of a node on equal
    inputs, or None where it cannot.
    """
    suspects = [each.node for each in graph if each.unit and each.deviation]
    for node in suspects[:_MOST]:
        first, second = (alone(name, node) for name in backends)
        if first is None or second is None or not are_steps_apart(first, second):
            continue
        results = {name: alone(name, node) for name in names}
        return node, outvoted(results, backends, are_steps_apart)
    return None
