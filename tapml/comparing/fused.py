"""Layers without a value of their own: a backend fused them, in its graph or as it compiled.

Where one side has no value of a layer, the layer is still run alone; where that is not possible
either, what can be said is between which layers it starts. A compiled run that differs from its own
layers is narrowed down by compiling the model as far as some layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from tapml.backends.runner import Array, Node
from tapml.comparing.localization import (
    EPSILON,
    NodeDeviation,
    deviation_of,
    is_beyond_rounding,
    is_rounding,
)

MOST_PREFIXES: Final = 16
"""Each is compiled: enough for the halves of 60,000 layers in a row."""
Between = tuple[str, str]
"""The last layer, or input, that is right, and the first that is not."""


def unmeasured(
    nodes: Sequence[Node], graph: Sequence[NodeDeviation], outputs: Iterable[str]
) -> list[Node]:
    """Nodes that one side fused away and that lead to what deviates, or to an output.

    Constants are left out.

    Parameters
    ----------
    nodes
        In an order in which they can be run.
    graph
        Those that both sides have.
    outputs
        The model's, by the names of nodes.

    Examples
    --------
    >>> nodes = [Node("a", "Conv", (("x", 0),)), Node("b", "Relu", (("a", 0),))]
    >>> [each.name for each in unmeasured(nodes, [], ["b"])]
    ['a', 'b']
    """
    measured = {each.node.name for each in graph}
    by_name = {node.name: node for node in nodes}
    computed = _computed(nodes)
    found: set[str] = set()
    waiting = [
        *outputs,
        *(name for each in graph if each.deviates for name, _ in each.node.sources),
    ]
    while waiting:
        name = waiting.pop()
        if name in computed and name not in measured and name not in found:
            found.add(name)
            waiting += [source for source, _ in by_name[name].sources]
    return [node for node in nodes if node.name in found]


def _computed(nodes: Sequence[Node]) -> set[str]:
    """The nodes that an input reaches; the others are constants."""
    names = {node.name for node in nodes}
    computed: set[str] = set()
    for node in nodes:
        if any(name not in names or name in computed for name, _ in node.sources):
            computed.add(node.name)
    return computed


def constants_around(nodes: Sequence[Node], graph: Sequence[NodeDeviation]) -> list[Node]:
    """The constants that one side shows no values of, where :func:`around` says it starts.

    Libraries fold them, such as weights of 8 bits that become floats.

    Examples
    --------
    >>> nodes = [Node("w", "DequantizeLinear"), Node("y", "Gemm", (("x", 0), ("w", 0)))]
    >>> wrong = NodeDeviation(nodes[1], 1.0, 1.0, 1.0, True, True, True)
    >>> [each.name for each in constants_around(nodes, [wrong])]
    ['w']
    """
    between = around(nodes, graph)
    if between is None:
        return []
    (end,) = (at for at, node in enumerate(nodes) if node.name == between[1])
    reads = {nodes[at].name for at in _places(_above(nodes)[end])}
    constants = reads - {each.node.name for each in graph} - _computed(nodes)
    return [node for node in nodes if node.name in constants]


def with_alone(
    nodes: Sequence[Node],
    graph: Sequence[NodeDeviation],
    alone: Mapping[str, Sequence[Sequence[Array]]],
) -> tuple[NodeDeviation, ...]:
    """The graph with nodes that one side fused away, as they deviate alone on equal inputs.

    Parameters
    ----------
    nodes
        In an order in which they can be run.
    alone
        What the two backends make of each.
    """
    found = {each.node.name: each for each in graph}
    for node in nodes:
        if node.name in alone:
            first, second = alone[node.name]
            deviation, scale, _ = deviation_of(first, second)
            rate = deviation / EPSILON
            # The published rule reads hidden states: it cannot highlight what has no such state.
            found[node.name] = NodeDeviation(
                node, deviation, scale, rate, highlighted=False, deviates=True, suspect=True
            )
    return tuple(found[node.name] for node in nodes if node.name in found)


def around(nodes: Sequence[Node], graph: Sequence[NodeDeviation]) -> Between | None:
    """The nearest layers around those that one side fused away, where it starts there.

    The second is the first that deviates though nothing that both sides have before it does.
    """
    measured = {each.node.name: each for each in graph}
    by_name = {node.name: node for node in nodes}
    place = {node.name: at for at, node in enumerate(nodes)}
    for each in graph:
        if not each.deviates:
            continue
        nearest: set[str] = set()
        waiting, passed = [name for name, _ in each.node.sources], False
        while waiting:
            name = waiting.pop()
            if name in measured or name not in by_name:
                nearest.add(name)
            else:
                passed = True
                waiting += [source for source, _ in by_name[name].sources]
        if passed and not any(name in measured and measured[name].deviates for name in nearest):
            last = max(nearest, key=lambda name: place.get(name, -1), default="")
            return (last, each.node.name) if last else None
    return None


def narrowed(
    nodes: Sequence[Node], last: str, differs: Callable[[Node], bool | None]
) -> tuple[Between, bool] | None:
    """Between which layers a compiled run parts from its own layers, by halves.

    Parameters
    ----------
    nodes
        In an order in which they can be run.
    last
        A node that differs when the whole model is compiled.
    differs
        Whether a node does when the model is compiled as far as it; None where that is not known.
        It is asked about `last`, and :data:`MOST_PREFIXES` more at most.

    Returns
    -------
    tuple or None
        The two layers, and whether the second is the first that differs: all before it are right.

    Examples
    --------
    >>> chain = [Node(str(at), "Add", ((str(at - 1), 0),)) for at in range(1, 9)]
    >>> narrowed(chain, "8", lambda node: int(node.name) >= 6)
    (('5', '6'), True)
    """
    place = {node.name: at for at, node in enumerate(nodes)}
    if last not in place or differs(nodes[place[last]]) is False:
        return None  # Also where it takes other instances than are asked about.
    above = _above(nodes)
    wrong, right = place[last], 0
    left = above[wrong]
    for _ in range(MOST_PREFIXES):
        if not left:
            break
        middle = _middle(left, above)
        answer = differs(nodes[middle])
        if answer:
            wrong = middle
            left &= above[middle]
        else:
            left &= ~(1 << middle)
            if answer is False:
                right |= 1 << middle
                left &= ~above[middle]
    known = _places(right & above[wrong])
    covered = 0
    for each in known:
        covered |= above[each] | 1 << each
    inputs = (name for name, _ in nodes[wrong].sources if name not in place)
    before = nodes[known[-1]].name if known else next(inputs, "")
    return ((before, nodes[wrong].name), not above[wrong] & ~covered) if before else None


def is_compiled_otherwise(whole: Array, own: Sequence[Array], units: Sequence[float]) -> bool:
    """Whether a compiled run's output is another than `own`, that of its layers.

    Layers of `units`, of 16 or 8 bits, round less often where they are fused. A model that fixes
    the number of instances repeats the last.
    """
    made = [each[: len(whole)] for each in own if each.ndim]
    if not made or made[0].shape != whole.shape:
        return False
    sides = [whole], made[:1]
    return is_beyond_rounding(*sides) and not is_rounding(deviation_of(*sides)[2], units)


def first_failing(
    nodes: Sequence[Node], fails: Callable[[Node], bool | None]
) -> Node | Between | None:
    """The first node as far as which a model fails, or two around it; None where it does not."""
    if not nodes or not fails(nodes[-1]):
        return None
    found = narrowed(nodes, nodes[-1].name, fails)
    if found is None or not found[1]:
        return found and found[0]
    return next(each for each in nodes if each.name == found[0][1])


def _middle(left: int, above: Sequence[int]) -> int:
    """The place that divides a set best: as many lead to it as do not.

    Halves of the order alone would ask about one short branch after the other.
    """
    count = left.bit_count()
    return min(_places(left), key=lambda at: abs(count - 2 * (above[at] & left).bit_count() - 1))


def _above(nodes: Sequence[Node]) -> list[int]:
    """By node the set of those that lead to it: bit n is the node at place n."""
    place: dict[str, int] = {}
    found: list[int] = []
    for node in nodes:
        reads = {place[name] for name, _ in node.sources if name in place}
        found.append(0)
        for each in reads:
            found[-1] |= found[each] | 1 << each
        place[node.name] = len(place)
    return found


def _places(these: int) -> list[int]:
    return [at for at in range(these.bit_length()) if these >> at & 1]
