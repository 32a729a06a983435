"""Where the call sites of an entry stand on the migration map.

One band per decoder layer, and one before and after them: a model is read top to bottom as it was
written, and a layer is compared with the next at a glance. Inside a band a call site stands in the
column of its longest path from the band's start; call sites of one column go to lanes below each
other. A long layer is broken into rows, as a line of text is, and many layers into strips beside
each other, as in a newspaper: a strip is as wide as a page and is read without moving the map, and
all of the map is about as wide as it is tall.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tapml.graph.plan import CallStep, Entry, GraphPlan, ViewStep

COLUMN_WIDTH: Final = 112
COLUMNS: Final = 11
"""Columns of one row."""
LANE_HEIGHT: Final = 38
ROW_GAP: Final = 14
BAND_GAP: Final = 26
STRIP_GAP: Final = 40
ASPECT: Final = 1.4
"""Width over height of a map of many layers, about that of a window."""
LEFT_MARGIN: Final = 64


@dataclass(frozen=True)
class MapNode:
    """One call site: its place in pixels (left, top) and the band it stands in."""

    site: str
    operator: str
    band: str
    left: int
    top: int


@dataclass(frozen=True)
class EntryMap:
    """The map of one entry.

    Attributes
    ----------
    entry
        Its name.
    nodes
        The call sites, in execution order.
    edges
        Pairs of indices into `nodes`: who writes, who reads.
    bands
        (title, left, top, height); all are `strip` wide.
    strip, width, height
        Width of one strip; the size of all of it.
    """

    entry: str
    nodes: tuple[MapNode, ...]
    edges: tuple[tuple[int, int], ...]
    bands: tuple[tuple[str, int, int, int], ...]
    strip: int
    width: int
    height: int

    def to_json(self) -> dict[str, Any]:
        """Plain data, as short as it gets: the page that draws it holds thousands of sites."""
        operators = list(dict.fromkeys(node.operator for node in self.nodes))
        position = {name: index for index, name in enumerate(operators)}
        return {
            "entry": self.entry,
            "operators": operators,
            # Site, index into `operators`, left, top.
            "nodes": [[n.site, position[n.operator], n.left, n.top] for n in self.nodes],
            "edges": [list(edge) for edge in self.edges],
            "bands": [list(band) for band in self.bands],
            "strip": self.strip,
            "width": self.width,
            "height": self.height,
        }


def lay_out(plan: GraphPlan, entry: Entry) -> EntryMap:
    """Place the call sites of `entry`."""
    calls = entry.calls
    edges = _edges(plan, entry)
    bands = _band_names(calls)
    columns = _columns(bands, edges)
    strip = LEFT_MARGIN + min(max(columns, default=0) + 1, COLUMNS) * COLUMN_WIDTH

    members: dict[str, list[int]] = {}
    for index, band in enumerate(bands):
        members.setdefault(band, []).append(index)
    inside = {band: _place(indices, columns) for band, indices in members.items()}
    heights = {
        band: max(top for _, top in at.values()) + LANE_HEIGHT for band, at in inside.items()
    }
    corners = _fold(heights, strip)

    places: dict[int, MapNode] = {}
    for band, at in inside.items():
        left, top = corners[band]
        for index, (x, y) in at.items():
            call = calls[index]
            places[index] = MapNode(call.site, call.operator, band, left + x, top + y)
    return EntryMap(
        entry.name,
        tuple(places[index] for index in range(len(calls))),
        edges,
        tuple((band, *corners[band], heights[band]) for band in corners),
        strip,
        max((left for left, _ in corners.values()), default=0) + strip,
        max((top + heights[band] for band, (_, top) in corners.items()), default=LANE_HEIGHT),
    )


def _place(indices: Sequence[int], columns: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Where a band's call sites stand in it: rows of columns, lanes in a column; (left, top)."""
    places: dict[int, tuple[int, int]] = {}
    top = 0
    for row in range(max(columns[index] for index in indices) // COLUMNS + 1):
        lanes: dict[int, int] = {}
        for index in indices:
            if columns[index] // COLUMNS == row:
                column = columns[index] % COLUMNS
                lane = lanes.get(column, 0)
                lanes[column] = lane + 1
                places[index] = LEFT_MARGIN + column * COLUMN_WIDTH, top + lane * LANE_HEIGHT
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


def _edges(plan: GraphPlan, entry: Entry) -> tuple[tuple[int, int], ...]:
    producer: dict[str, int] = {}
    edges: dict[tuple[int, int], None] = {}
    index = -1
    for step in entry.steps:
        if isinstance(step, ViewStep):
            if step.source in producer:
                producer[step.result] = producer[step.source]
            continue
        index += 1
        parameters = plan.operators[step.operator].parameters
        for parameter, name in zip(parameters, step.arguments, strict=True):
            if parameter.role != "output" and name in producer:
                edges[producer[name], index] = None
        for parameter, name in zip(parameters, step.arguments, strict=True):
            if parameter.role != "input":
                producer[name] = index
    return tuple(edges)


def _band_names(calls: Sequence[CallStep]) -> list[str]:
    layers = [call.layer for call in calls]
    inside = [index for index, layer in enumerate(layers) if layer is not None]
    first, last = (inside[0], inside[-1]) if inside else (len(calls), len(calls))
    names: list[str] = []
    current = ""
    for index, layer in enumerate(layers):
        if layer is not None:
            current = f"layer {layer}"
            names.append(current)
        elif index < first:
            names.append("model" if not inside else "before")
        elif index > last:
            names.append("after")
        else:
            names.append(current)
    return names


def _columns(bands: Sequence[str], edges: Sequence[tuple[int, int]]) -> list[int]:
    columns = [0] * len(bands)
    for source, target in sorted(edges, key=lambda pair: pair[1]):
        if bands[source] == bands[target]:
            columns[target] = max(columns[target], columns[source] + 1)
    return columns
