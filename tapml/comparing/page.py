"""The localization maps as one HTML page."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from tapml.comparing.localization import NodeDeviation
from tapml.comparing.result import NOT_FAULTS, Comparison, PairResult, where
from tapml.comparing.tokens import tokens_of
from tapml.report.html import Cell, Section, render_sections
from tapml.report.layout import Band, Edge, GraphMap, Node, lay_out
from tapml.runs.wording import counted

_SHORTEST_RUN = 4
_MOST_LAYERS = 10


def render_comparison(comparison: Comparison) -> str:
    """The page of a comparison: the verdicts, then a map for each pair that differs."""
    faults = sum(each.status not in NOT_FAULTS for each in comparison.pairs)
    headline = (
        f"{comparison.instances} instances on {len(comparison.backends)} backends; "
        f"{faults} of {len(comparison.pairs)} pairs differ."
    )
    beside = {
        pair: [" / ".join(each) for each in cluster.pairs if each != pair]
        for cluster in comparison.clusters
        for pair in cluster.pairs
    }
    stories = [
        _pair(each, beside.get(each.backends, []))
        for each in comparison.pairs
        if each.status != "agree"
    ]
    return render_sections(
        f"{Path(comparison.model).name} on several backends",
        headline,
        [_pairs(comparison), *stories, _backends(comparison), _words()],
    )


def _pairs(comparison: Comparison) -> Section:
    of_tokens = any("KL" in pair.metrics for pair in comparison.pairs)
    published = (
        ["largest KL (nats)", "same token first"]
        if of_tokens
        else ["largest D_CLASS", "largest D_MAD"]
    )
    columns = ["pair", "verdict", "first layer", "blamed", "instances that differ", *published,
               "largest deviation / scale"]  # fmt: skip
    rows: list[list[Cell]] = []
    for pair in comparison.pairs:
        tiers = [pair.metrics.get(name, {}).get("largest") for name in ("D_CLASS", "D_MAD")]
        rows.append(
            [
                " / ".join(pair.backends),
                {"status": _chip(pair.status), "text": pair.status},
                where(pair),
                pair.blamed or "-",
                f"{pair.metrics['share']:.1%}" if "share" in pair.metrics else "-",
                *(tokens_of(pair.metrics) if of_tokens else tiers),
                pair.metrics.get("elementwise", {}).get("largest"),
            ]
        )
    return {"id": "pairs", "title": "Pairs", "table": (columns, rows)}


def _chip(status: str) -> str:
    return {"agree": "pass", "unsupported": "absent", "nondeterministic": "degraded"}.get(
        status, "fail"
    )


def _pair(pair: PairResult, beside: list[str]) -> Section:
    """The story of a pair; `beside` are those of its cluster."""
    facts = [("verdict", pair.status), ("why", pair.reason)]
    if pair.layer or pair.between:
        facts.append(("starts" if pair.between else "starts at", where(pair)))
    if len(pair.guilty) > 1:
        facts.append(("all guilty layers", ", ".join(pair.guilty)))
    if beside:
        facts.append(("in one cluster with", ", ".join(beside)))
    facts.append(("blamed", pair.blamed or "nobody: there is no majority"))
    if pair.place:
        facts.append(("the fault lies in", f"the {pair.place}"))
    if pair.script:
        facts.append(("the layer alone", f"python {pair.script}"))
    if pair.worst is not None:
        facts.append(("most inconsistent instance", str(pair.worst)))
    for name in ("D_CLASS", "D_MAD"):
        if name in pair.metrics:
            tier = pair.metrics[name]
            bins = ", ".join(
                f"{number} at {key}" for key, number in tier["pattern"].items() if number
            )
            facts.append(
                (
                    name,
                    f"{counted(tier['triggering'], 'instance')} at {tier['threshold']:g} or more; "
                    f"all by their distance: {bins}",
                )
            )
    facts += _of_tokens(pair)
    section: Section = {
        "id": "-".join(pair.backends),
        "title": " and ".join(pair.backends),
        "facts": facts,
    }
    if pair.graph:
        section["maps"] = [_map(pair)]
        columns, rows = _suspects(pair)
        if rows:
            section["table"] = columns, rows
    return section


def _of_tokens(pair: PairResult) -> list[tuple[str, str]]:
    """Of a language model."""
    if "KL" not in pair.metrics:
        return []
    tier, top = pair.metrics["KL"], pair.metrics["top1"]
    return [
        (
            "divergence",
            f"{counted(tier['triggering'], 'instance')} of at least {tier['threshold']:g} nats "
            f"at a position; {tier['mean']:.2g} on average",
        ),
        (
            "same token first",
            f"{top['agreement']:.2%} of the positions; {top['parted']} instances part",
        ),
    ]


def _suspects(pair: PairResult) -> tuple[list[str], list[list[Cell]]]:
    """The guilty layers and the steepest, in graph order: the map has the others."""
    found = [each for each in pair.graph if each.highlighted or each.node.name in pair.guilty]
    steepest = sorted(
        found, key=lambda each: (each.node.name not in pair.guilty, not each.suspect, -each.rate)
    )
    most = {each.node.name for each in steepest[:_MOST_LAYERS]}
    shown = [each for each in found if each.node.name in most]
    title = "highlighted layer"
    if len(found) > len(shown):
        title += f" ({len(shown)} of {len(found)})"
    return (
        [title, "type", "δ (MAD)", "R_L", "replayed alone"],
        [
            [
                each.node.name,
                each.node.kind,
                each.deviation,
                each.rate,
                _alone(each, pair),
            ]
            for each in shown
        ],
    )


def _alone(each: NodeDeviation, pair: PairResult) -> Cell:
    """What a layer was found to do alone on equal inputs."""
    if each.node.name in pair.guilty:
        return {"status": "fail", "text": "differs"}
    if each.node.name in pair.cleared:
        return "agrees"
    return "not replayed" if each.deviates else "rounding"


def _computed(pair: PairResult) -> list[NodeDeviation]:
    """The nodes that inputs reach, or that deviate: exporters leave many constants."""
    constants: set[str] = set()
    for each in pair.graph:
        if not each.deviates and all(name in constants for name, _ in each.node.sources):
            constants.add(each.node.name)
    return [each for each in pair.graph if each.node.name not in constants]


def _map(pair: PairResult) -> GraphMap:
    graph = _computed(pair)
    names = {each.node.name for each in graph}
    band = "model"
    nodes = [
        Node(
            each.node.name,
            band,
            label=f"{each.node.kind} {each.node.name}"
            if each.node.kind.lower() not in each.node.name.lower()
            else each.node.name,
            status=_status(each, pair),
            heat=_heat(each),
            facts=tuple(_facts(each)),
        )
        for each in graph
    ]
    edges = [
        Edge(source, each.node.name)
        for each in graph
        for source, _ in each.node.sources
        if source in names
    ]
    run = _SHORTEST_RUN if len(nodes) > 40 else None
    return lay_out(nodes, edges, [Band(band)], name=" / ".join(pair.backends), shortest_run=run)


def _status(each: NodeDeviation, pair: PairResult) -> str:
    if each.node.name in pair.guilty or each.node.name in (pair.between or ())[1:]:
        return "starts"
    if each.node.name in pair.unstable:
        return "degraded"
    return "carries" if each.deviates else "pass"


def _heat(each: NodeDeviation) -> float | None:
    """From rounding to as large as the activation, in decades."""
    if not each.deviates:
        return None
    if not math.isfinite(each.deviation):
        return 1.0
    share = each.deviation / each.scale if each.scale else 1.0
    return min(1.0, max(0.05, 1 + math.log10(max(share, 1e-6)) / 6))


def _facts(each: NodeDeviation) -> Iterator[tuple[str, str]]:
    yield "type", each.node.kind
    yield "δ (MAD)", f"{each.deviation:.3g}"
    yield "R_L", f"{each.rate:.3g}"
    yield "scale", f"{each.scale:.3g}"
    if each.highlighted:
        yield "above the third quartile of R_L", ""


def _words() -> Section:
    """What the terms of the page mean."""
    facts = [
        ("first layer", "the first one that differs where it runs alone on equal inputs"),
        ("blamed", "the backend that a majority of all backends disagrees with at that layer"),
        ("largest deviation / scale", "of one element, over the largest magnitude of its instance"),
        ("D_CLASS", "how far the two put the right class from each other, from 0 to 16"),
        ("D_MAD", "how far their distances from the truth are apart, from 0 to 1"),
        ("δ (MAD)", "the mean absolute deviation of a layer's outputs on the most inconsistent "
         "instance"),
        ("R_L", "how much δ grew in a layer, as a multiple of the largest δ that came in"),
        ("highlighted layer", "R_L is in its largest quarter, which rounding may be as well"),
    ]  # fmt: skip
    return {"id": "words", "title": "Words", "facts": facts}


def _backends(comparison: Comparison) -> Section:
    columns = ["backend", "libraries", "seconds", "failure"]
    rows: list[list[Cell]] = [
        [
            each.name,
            ", ".join(f"{name} {version}" for name, version in each.versions.items()),
            each.seconds,
            "-" if each.failure is None else f"{each.failure.kind}: {each.failure.message}",
        ]
        for each in comparison.backends
    ]
    return {"id": "backends", "title": "Backends", "table": (columns, rows)}
