"""The migration map: the call sites of an entry, a band for each layer of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import log10
from types import MappingProxyType
from typing import Final

from tapml.plan.graph_plan import CallStep, Entry, GraphPlan, ViewStep
from tapml.report.layout import Band, Edge, GraphMap, Node, lay_out

# A deviation below it has no bar.
_SMALLEST: Final = 1e-9


def map_of(
    plan: GraphPlan, entry: Entry, deviations: Mapping[str, float] = MappingProxyType({})
) -> GraphMap:
    """The map of an entry.

    `deviations` are those of the target's own run from the reference's, by call site; a box has a
    bar as long as its magnitude, so that error is seen to grow along the model.

    One band per decoder layer, and one before and after them: a model is read from top to bottom as
    it was written, and a layer is compared with the next at a glance.
    """
    bands = _band_names(entry.calls)
    nodes = [
        _node(call, band, deviations.get(call.site))
        for call, band in zip(entry.calls, bands, strict=True)
    ]
    return lay_out(
        nodes, list(_edges(plan, entry)), [Band(each) for each in dict.fromkeys(bands)],
        name=entry.name,
    )  # fmt: skip


def _node(call: CallStep, band: str, deviation: float | None) -> Node:
    if deviation is None:
        return Node(call.site, band, label=call.operator)
    size = 0.0 if deviation == 0 else max(0.0, log10(deviation / _SMALLEST))
    facts = (("deviation of the target's own run", f"{deviation:.2g}"),)
    return Node(call.site, band, label=call.operator, size=size, facts=facts)


def _edges(plan: GraphPlan, entry: Entry) -> Iterator[Edge]:
    """Who writes a value and who reads it, also through views."""
    producer: dict[str, str] = {}
    for step in entry.steps:
        if isinstance(step, ViewStep):
            if step.source in producer:
                producer[step.result] = producer[step.source]
            continue
        parameters = plan.operators[step.operator].parameters
        for parameter, name in zip(parameters, step.arguments, strict=True):
            if parameter.role != "output" and name in producer:
                yield Edge(producer[name], step.site)
        for parameter, name in zip(parameters, step.arguments, strict=True):
            if parameter.role != "input":
                producer[name] = step.site


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
