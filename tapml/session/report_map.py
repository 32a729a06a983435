"""The migration map: the call sites of an entry, a band for each layer of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tapml.plan.graph_plan import CallStep, Entry, GraphPlan, ViewStep
from tapml.report.layout import Band, Edge, GraphMap, Node, lay_out


def map_of(plan: GraphPlan, entry: Entry) -> GraphMap:
    """The map of an entry.

    One band per decoder layer, and one before and after them: a model is read from top to bottom as
    it was written, and a layer is compared with the next at a glance.
    """
    bands = _band_names(entry.calls)
    nodes = [
        Node(call.site, band, label=call.operator)
        for call, band in zip(entry.calls, bands, strict=True)
    ]
    return lay_out(
        nodes, list(_edges(plan, entry)), [Band(each) for each in dict.fromkeys(bands)],
        name=entry.name,
    )  # fmt: skip


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
