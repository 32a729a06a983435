"""Where a compiled run parts from its own layers, by halves."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tapml.backends.runner import Node
from tapml.comparing.fused import MOST_PREFIXES, narrowed


@pytest.mark.parametrize("wrong", [0, 57, 118])
def test_short_branches_beside_a_long_way_do_not_use_up_the_compilations(wrong: int) -> None:
    """As of a network that computes extents beside its layers."""
    extents = [Node(f"extent{at}", "Shape", (("x", 0),)) for at in range(100)]
    way = ["x", *(f"layer{at}" for at in range(119))]
    layers = [Node(name, "Relu", ((before, 0),)) for before, name in pairwise(way)]
    reads = tuple((each.name, 0) for each in (*extents, layers[-1]))
    guilty = {each.name for each in layers[wrong:]} | {"end"}
    asked: list[str] = []

    def differs(node: Node) -> bool:
        asked.append(node.name)
        return node.name in guilty

    found = narrowed([*extents, *layers, Node("end", "Concat", reads)], "end", differs)
    assert found == ((way[wrong], f"layer{wrong}"), True)
    assert len(asked) <= MOST_PREFIXES
