"""Where the call sites of an entry stand on the migration map.

One band per decoder layer, and one before and after them: a model is read top to bottom as it was
written, and a layer is compared with the next at a glance. Inside a band a call site stands in the
column of its longest path from the band's start; call sites of one column go to lanes below each
other. A long layer is broken into rows, as a line of text is: a map as wide as a page can be read
without moving it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tapml.graph.plan import CallStep, Entry, GraphPlan, ViewStep

COLUMN_WIDTH: Final = 112
COLUMNS: Final = 11
"""Columns of one row."""
LANE_HEIGHT: Final = 38
ROW_GAP: Final = 14
BAND_GAP: Final = 26
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
    """The map of one entry; edges are pairs of indices into `nodes`."""

    entry: str
    nodes: tuple[MapNode, ...]
    edges: tuple[tuple[int, int], ...]
    bands: tuple[tuple[str, int, int], ...]
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
            "width": self.width,
            "height": self.height,
        }


def lay_out(plan: GraphPlan, entry: Entry) -> EntryMap:
    """Place the call sites of `entry`; bands are (title, top, height)."""
    calls = entry.calls
    edges = _edges(plan, entry)
    bands = _band_names(calls)
    columns = _columns(bands, edges)

    nodes: list[MapNode] = []
    extents: list[tuple[str, int, int]] = []
    top = 0
    for band in dict.fromkeys(bands):
        inside = [index for index in range(len(calls)) if bands[index] == band]
        start = top
        for row in range(max(columns[index] for index in inside) // COLUMNS + 1):
            lanes: dict[int, int] = {}
            for index in inside:
                if columns[index] // COLUMNS != row:
                    continue
                column = columns[index] % COLUMNS
                lane = lanes.get(column, 0)
                lanes[column] = lane + 1
                left = LEFT_MARGIN + column * COLUMN_WIDTH
                call = calls[index]
                nodes.append(
                    MapNode(call.site, call.operator, band, left, top + lane * LANE_HEIGHT)
                )
            top += max(lanes.values()) * LANE_HEIGHT + ROW_GAP
        extents.append((band, start, top - ROW_GAP - start))
        top += BAND_GAP - ROW_GAP
    by_site = {node.site: node for node in nodes}
    widest = min(max(columns, default=0) + 1, COLUMNS)
    return EntryMap(
        entry.name,
        tuple(by_site[call.site] for call in calls),
        edges,
        tuple(extents),
        LEFT_MARGIN + widest * COLUMN_WIDTH,
        max(top - BAND_GAP, LANE_HEIGHT),
    )


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
