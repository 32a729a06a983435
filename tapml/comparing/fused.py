"""Layers without a value of their own: a backend fused them, in its graph or as it compiled.

Where one side has no value of a layer, the layer is still run alone; where that is not possible
either, what can be said is between which layers it starts. A compiled run that differs from its own
layers is narrowed down by compiling the model as far as some layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from tapml.backends.runner import Array, Node
from tapml.comparing.localization import EPSILON, NodeDeviation, deviation_of

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
    computed: set[str] = set()
    for node in nodes:
        if any(name not in by_name or name in computed for name, _ in node.sources):
            computed.add(node.name)
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
    by_name = {node.name: node for node in nodes}
    if last not in by_name or differs(by_name[last]) is False:
        return None  # Also where it takes other instances than are asked about.
    place = {node.name: at for at, node in enumerate(nodes)}
    wrong, right = last, set[str]()
    left = _before(wrong, by_name)
    for _ in range(MOST_PREFIXES):
        if not left:
            break
        middle = sorted(left, key=place.__getitem__)[len(left) // 2]
        answer = differs(by_name[middle])
        if answer:
            wrong = middle
            left &= _before(middle, by_name)
        else:
            left -= {middle}
            if answer is False:
                right.add(middle)
                left -= _before(middle, by_name)
    before_wrong = _before(wrong, by_name)
    known = right & before_wrong
    covered = known.union(*(_before(each, by_name) for each in known))
    sources = [name for name, _ in by_name[wrong].sources]
    inputs = (each for each in sources if each not in by_name)
    before = max(known, key=place.__getitem__) if known else next(inputs, "")
    return ((before, wrong), before_wrong <= covered) if before else None


def _before(name: str, by_name: dict[str, Node]) -> set[str]:
    """The nodes that lead to a node."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for source, _ in by_name[waiting.pop()].sources:
            if source in by_name and source not in found:
                found.add(source)
                waiting.append(source)
    return found
