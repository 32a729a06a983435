"""Where the nodes of a graph stand on its map.

Bands lie one below the other, in the order given: the layers of a model, the stages of a pipeline,
the models of a test. Inside a band a node stands in the column of its longest path from the band's
start; nodes of one column go to lanes below each other. A long band is broken into rows, as a line
of text is, and many bands into strips beside each other, as in a newspaper: a strip is as wide as a
page and is read without moving the map, and all of the map is about as wide as it is tall.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from tapml_targets.errors import InputError

COLUMN_WIDTH: Final = 112
COLUMNS: Final = 11
"""Columns of one row."""
LANE_HEIGHT: Final = 38
ROW_GAP: Final = 14
BAND_GAP: Final = 26
STRIP_GAP: Final = 40
ASPECT: Final = 1.4
"""Width over height of a map of many bands, about that of a window."""
LEFT_MARGIN: Final = 64
"""Left of a band's nodes, for its title; wider for longer titles, up to `WIDEST_MARGIN`."""
WIDEST_MARGIN: Final = 260
_CHARACTER: Final = 7
_TITLE: Final = 9


@dataclass(frozen=True)
class Node:
    """A box of the map.

    Attributes
    ----------
    name
        Unique on the map; a search finds it.
    band
        The name of its band.
    label
        What the box shows, in up to two short lines; the name where it is empty.
    status
        ``pass``, ``degraded``, ``fail``, ``absent``, empty for none, or a status of the page's own.
    heat
        How strongly the colour of its status fills it, 0 to 1; None for the usual tint.
    size
        Shown as a bar in the box, relative to the largest of the map; 0 for no bar.
    facts
        (name, value) shown on hover and when it is found: a deviation, a shape.
    column
        Its column in the band; None for that of its longest path.
    """

    name: str
    band: str
    label: str = ""
    status: str = ""
    heat: float | None = None
    size: float = 0.0
    facts: tuple[tuple[str, str], ...] = ()
    column: int | None = None


@dataclass(frozen=True)
class Edge:
    """An arrow between two nodes, by their names."""

    source: str
    target: str


@dataclass(frozen=True)
class Band:
    """A part of the graph that stands together; its title is its name where it has none."""

    name: str
    title: str = ""


@dataclass(frozen=True)
class PlacedNode:
    """A node, its place in pixels (left, top), and the run of nodes it stands for, if any."""

    node: Node
    left: int
    top: int
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class GraphMap:
    """A map that is laid out.

    Attributes
    ----------
    name
        Its title among several maps of a page.
    nodes
        In the order given.
    edges
        Pairs of indices into `nodes`.
    bands
        (title, left, top, height); all are `strip` wide.
    strip, width, height
        Width of one strip; the size of all of it.
    """

    name: str
    nodes: tuple[PlacedNode, ...]
    edges: tuple[tuple[int, int], ...]
    bands: tuple[tuple[str, int, int, int], ...]
    strip: int
    width: int
    height: int

    def to_json(self) -> dict[str, Any]:
        """Plain data, as short as it gets: the page that draws it holds thousands of nodes."""
        labels = list(dict.fromkeys(each.node.label or each.node.name for each in self.nodes))
        position = {label: index for index, label in enumerate(labels)}
        return {
            "name": self.name,
            "labels": labels,
            # Name, index into `labels`, left, top, and what else there is of it.
            "nodes": [
                [
                    each.node.name,
                    position[each.node.label or each.node.name],
                    each.left,
                    each.top,
                    *_more(each),
                ]
                for each in self.nodes
            ],
            "edges": [list(edge) for edge in self.edges],
            "bands": [list(band) for band in self.bands],
            "strip": self.strip,
            "width": self.width,
            "height": self.height,
        }


def _more(placed: PlacedNode) -> Iterator[dict[str, Any]]:
    node = placed.node
    more = {"status": node.status, "size": node.size, "facts": [list(each) for each in node.facts]}
    found: dict[str, Any] = {name: value for name, value in more.items() if value}
    if node.heat is not None:
        found["heat"] = node.heat
    if placed.members:
        found["members"] = placed.members
    if found:
        yield found


def lay_out(
    nodes: Sequence[Node],
    edges: Sequence[Edge] = (),
    bands: Sequence[Band] = (),
    *,
    name: str = "",
    shortest_run: int | None = None,
) -> GraphMap:
    """Place the nodes of a graph.

    Parameters
    ----------
    nodes, edges
        The graph, which has no cycle. The order of `nodes` decides which stands above in a column.
    bands
        From top to bottom; a band without nodes is left out.
    name
        The map's.
    shortest_run
        Draw a linear run of at least so many nodes as one box. All nodes of a run are in one band
        and of one status, so that a failure never hides in one. None draws every node.

    Raises
    ------
    InputError
        If two nodes have one name, if an edge or a node names something that is not there, if a
        heat is not in 0 to 1, or if the graph has a cycle.
    """
    _check(nodes, edges, bands)
    members: dict[str, tuple[str, ...]] = {}
    if shortest_run is not None:
        nodes, edges, members = _collapsed(nodes, edges, max(2, shortest_run))
    index = {node.name: place for place, node in enumerate(nodes)}
    pairs = tuple(dict.fromkeys((index[each.source], index[each.target]) for each in edges))
    columns = _columns(nodes, pairs)
    titles = {band.name: band.title or band.name for band in bands}
    margin = _margin(titles.values())
    strip = margin + min(max(columns, default=0) + 1, COLUMNS) * COLUMN_WIDTH

    inside = {
        band.name: _place(own, columns, margin)
        for band in bands
        if (own := [place for place, node in enumerate(nodes) if node.band == band.name])
    }
    heights = {
        band: max(top for _, top in at.values()) + LANE_HEIGHT for band, at in inside.items()
    }
    corners = _fold(heights, strip)

    places: dict[int, tuple[int, int]] = {}
    for band, at in inside.items():
        left, top = corners[band]
        places |= {place: (left + x, top + y) for place, (x, y) in at.items()}
    return GraphMap(
        name,
        tuple(
            PlacedNode(node, *places[place], members.get(node.name, ()))
            for place, node in enumerate(nodes)
        ),
        pairs,
        tuple((titles[band], *corner, heights[band]) for band, corner in corners.items()),
        strip,
        max((left for left, _ in corners.values()), default=0) + strip,
        max((top + heights[band] for band, (_, top) in corners.items()), default=LANE_HEIGHT),
    )


def _check(nodes: Sequence[Node], edges: Sequence[Edge], bands: Sequence[Band]) -> None:
    names = Counter(node.name for node in nodes)
    if twice := [name for name, number in names.items() if number > 1]:
        raise InputError(f"several nodes of the map are named {twice[0]!r}; expected unique names")
    known = {band.name for band in bands}
    for node in nodes:
        if node.band not in known:
            raise InputError(
                f"node {node.name!r} is in band {node.band!r}; expected one of {sorted(known)}"
            )
        if node.heat is not None and not 0 <= node.heat <= 1:
            raise InputError(f"the heat of node {node.name!r} is {node.heat}; expected 0 to 1")
    for each in edges:
        for end in (each.source, each.target):
            if end not in names:
                raise InputError(
                    f"the edge {each.source!r} -> {each.target!r} ends at {end!r}, which is no "
                    "node of the map; add the node or leave the edge out"
                )


def _collapsed(
    nodes: Sequence[Node], edges: Sequence[Edge], shortest: int
) -> tuple[list[Node], list[Edge], dict[str, tuple[str, ...]]]:
    """The graph with one node for each linear run, and the names in each by that node's."""
    by_name = {node.name: node for node in nodes}
    after: dict[str, set[str]] = {name: set() for name in by_name}
    before: dict[str, set[str]] = {name: set() for name in by_name}
    for each in edges:
        after[each.source].add(each.target)
        before[each.target].add(each.source)

    def follower(name: str) -> str | None:
        """The next node of the run that `name` is in."""
        (found,) = after[name] if len(after[name]) == 1 else (None,)
        if found is None or len(before[found]) > 1:
            return None
        one, two = by_name[name], by_name[found]
        alike = (one.band, one.status) == (two.band, two.status)
        return found if alike and one.column is two.column is None else None

    next_of = {name: found for name in by_name if (found := follower(name)) is not None}
    head_of = {name: name for name in by_name}
    members: dict[str, tuple[str, ...]] = {}
    for start in by_name.keys() - next_of.values():
        run = [start]
        while run[-1] in next_of:
            run.append(next_of[run[-1]])
        if len(run) >= shortest:
            members[start] = tuple(run)
            head_of |= dict.fromkeys(run, start)
    kept = [
        _joined([by_name[name] for name in members[node.name]]) if node.name in members else node
        for node in nodes
        if head_of[node.name] == node.name
    ]
    ends = ((head_of[each.source], head_of[each.target]) for each in edges)
    return kept, [Edge(source, target) for source, target in ends if source != target], members


def _joined(run: Sequence[Node]) -> Node:
    """The node that stands for a run: as hot as its hottest."""
    facts = [
        (node.name, ", ".join(f"{name} {value}" for name, value in node.facts)) for node in run
    ]
    return replace(
        run[0],
        label=f"{run[0].label or run[0].name} and {len(run) - 1} more",
        heat=max((node.heat for node in run if node.heat is not None), default=None),
        size=sum(node.size for node in run),
        facts=tuple(facts),
    )


def _margin(titles: Iterable[str]) -> int:
    """Room for the longest title."""
    beyond = max(map(len, titles), default=0) - _TITLE
    return min(LEFT_MARGIN + max(0, beyond) * _CHARACTER, WIDEST_MARGIN)


def _place(
    indices: Sequence[int], columns: Sequence[int], margin: int
) -> dict[int, tuple[int, int]]:
    """Where a band's nodes stand in it: rows of columns, lanes in a column; (left, top)."""
    places: dict[int, tuple[int, int]] = {}
    top = 0
    for row in range(max(columns[index] for index in indices) // COLUMNS + 1):
        lanes: dict[int, int] = {}
        for index in indices:
            if columns[index] // COLUMNS == row:
                column = columns[index] % COLUMNS
                lane = lanes.get(column, 0)
                lanes[column] = lane + 1
                places[index] = margin + column * COLUMN_WIDTH, top + lane * LANE_HEIGHT
        if lanes:
            top += max(lanes.values()) * LANE_HEIGHT + ROW_GAP
    return places


def _fold(heights: Mapping[str, int], width: int) -> dict[str, tuple[int, int]]:
    """The corner of every band, in as many strips as make the map about a window's shape."""
    total = sum(height + BAND_GAP for height in heights.values())
    strips = max(1, round(math.sqrt(total * ASPECT / width)))
    corners: dict[str, tuple[int, int]] = {}
    left = top = 0
    for band, height in heights.items():
        if top and top + height / 2 > total / strips:
            left, top = left + width + STRIP_GAP, 0
        corners[band] = left, top
        top += height + BAND_GAP
    return corners


def _columns(nodes: Sequence[Node], edges: Sequence[tuple[int, int]]) -> list[int]:
    before: dict[int, set[int]] = {place: set() for place in range(len(nodes))}
    for source, target in edges:
        before[target].add(source)
    columns = [node.column or 0 for node in nodes]
    try:
        for target in TopologicalSorter(before).static_order():
            if nodes[target].column is None:
                own = (each for each in before[target] if nodes[each].band == nodes[target].band)
                columns[target] = max((columns[each] + 1 for each in own), default=0)
    except CycleError as error:
        circle = " -> ".join(nodes[place].name for place in error.args[1])
        raise InputError(
            f"the map's graph has a cycle, {circle}; expected edges that all go one way: leave one "
            "of them out"
        ) from error
    return columns
