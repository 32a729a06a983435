"""Where the call sites of an entry stand on the migration map.

One band per decoder layer, and one before and after them: a model is read top to bottom as it was
written, and a layer is compared with the next at a glance. Inside a band a call site stands in the
column of its longest path from the band's start; call sites of one column go to lanes below each
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tapml.graph.plan import CallStep, Entry, GraphPlan, ViewStep

COLUMN_WIDTH = 112
LANE_HEIGHT = 34
BAND_GAP = 26
LEFT_MARGIN = 76


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
        lanes: dict[int, int] = {}
        for index, call in enumerate(calls):
            if bands[index] != band:
                continue
            lane = lanes.get(columns[index], 0)
            lanes[columns[index]] = lane + 1
            nodes.append(
                MapNode(
                    call.site,
                    call.operator,
                    band,
                    LEFT_MARGIN + columns[index] * COLUMN_WIDTH,
                    top + lane * LANE_HEIGHT,
                )
            )
        height = max(lanes.values()) * LANE_HEIGHT
        extents.append((band, top, height))
        top += height + BAND_GAP
    by_site = {node.site: node for node in nodes}
    return EntryMap(
        entry.name,
        tuple(by_site[call.site] for call in calls),
        edges,
        tuple(extents),
        LEFT_MARGIN + (max(columns, default=0) + 1) * COLUMN_WIDTH,
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
