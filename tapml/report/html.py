"""The report as one HTML page: self-contained, no network, light and dark, desktop and phone."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any

from tapml.report.layout import EntryMap

NODE_WIDTH = 96
NODE_HEIGHT = 26


def render(report: Mapping[str, Any], maps: Sequence[EntryMap]) -> str:
    """The page of `report` (the data of ``report.json``) with the map of every entry."""
    template = resources.files("tapml.report").joinpath("report.html.in").read_text("utf-8")
    operators = {operator["name"]: operator for operator in report["operators"]}
    return Template(template).substitute(
        title=html.escape(f"{report['model']['name']} → {report['target']['platform']}"),
        outcome_class=html.escape(report["outcome"]["status"].replace(" ", "-")),
        outcome=html.escape(report["outcome"]["text"]),
        facts=_facts(report),
        loosened=_failed(report) + _loosened(report) + _suspects(report),
        maps="".join(_map(entry_map, operators) for entry_map in maps),
        operators="".join(_operator_row(operator) for operator in report["operators"]),
        final=_final(report),
        phases=_phases(report),
        data=json.dumps(report, allow_nan=False).replace("<", "\\u003c"),
    )


def _facts(report: Mapping[str, Any]) -> str:
    model, target, summary = report["model"], report["target"], report["summary"]
    rows = (
        ("Model", f"{model['name']} · {model['dtype']} · {model['parameters']:,} parameters"),
        ("Reference", report["reference"]),
        ("Target", f"{target['name']} · {target['vendor_platform']}"),
        ("Driver", target["driver_version"]),
        ("Operators moved", f"{summary['moved']} of {summary['operators']}"),
        ("Carved tests", _tests(summary)),
        ("Worst error ratio", _ratio(summary.get("worst_ratio"), summary.get("worst_operator"))),
        ("Policy", report["policy"]["text"]),
    )
    return "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
        for name, value in rows
    )


def _tests(summary: Mapping[str, Any]) -> str:
    probes = f", and {summary['probes']} exact probes" if summary["probes"] else ""
    return f"{summary['tests_passed']:,} of {summary['tests']:,} pass{probes}"


def _ratio(value: float | None, operator: str | None = None) -> str:
    if value is None:
        return "–"
    text = f"{value:.3g}" if math.isfinite(value) else "not finite"
    return f"{text} ({operator})" if operator else text


def _failed(report: Mapping[str, Any]) -> str:
    """Every failure with what was found about it, each a link to its row."""
    items = "".join(
        f'<li><a href="#operator-{html.escape(operator["name"])}">'
        f"<code>{html.escape(operator['name'])}</code></a>: "
        f"{html.escape((operator.get('reason') or '').partition(chr(10))[0])}"
        f"{_findings(operator, evidence=False)}</li>"
        for operator in report["operators"]
        if operator["state"] == "failed"
    )
    return (
        f'<section class="warning fail"><h2>Failed</h2><ul>{items}</ul></section>' if items else ""
    )


def _loosened(report: Mapping[str, Any]) -> str:
    items = "".join(f"<li>{html.escape(text)}</li>" for text in report["loosened"])
    return f'<section class="warning"><h2>Loosened</h2><ul>{items}</ul></section>' if items else ""


def _suspects(report: Mapping[str, Any]) -> str:
    """Whose fault it is where it is not the target's, or not the target's alone."""
    items = "".join(
        f"<li><code>{html.escape(operator['name'])}</code>: {html.escape(line)}</li>"
        for operator in report["operators"]
        for line in operator["suspects"]
    )
    return f'<section class="warning"><h2>Suspect</h2><ul>{items}</ul></section>' if items else ""


def _map(entry_map: EntryMap, operators: Mapping[str, Mapping[str, Any]]) -> str:
    parts: list[str] = []
    for title, top, height in entry_map.bands:
        parts.append(
            f'<rect class="band" x="0" y="{top - 6}" width="{entry_map.width}" '
            f'height="{height + 4}" rx="6"/>'
            f'<text class="band" x="8" y="{top + 17}">{html.escape(title)}</text>'
        )
    nodes = entry_map.nodes
    for source, target in entry_map.edges:
        parts.append(
            _edge(nodes[source].left, nodes[source].top, nodes[target].left, nodes[target].top)
        )
    for node in nodes:
        operator = operators[node.operator]
        state = operator["state"].replace(" ", "-")
        label = node.operator if len(node.operator) <= 15 else node.operator[:14] + "…"
        parts.append(
            f'<g class="node {state}" data-operator="{html.escape(node.operator)}" '
            f'transform="translate({node.left},{node.top})" tabindex="0" role="button">'
            f"<title>{html.escape(node.site)}\n{html.escape(operator['state'])}</title>"
            f'<rect width="{NODE_WIDTH}" height="{NODE_HEIGHT}" rx="5"/>'
            f'<text x="{NODE_WIDTH // 2}" y="17">{html.escape(label)}</text></g>'
        )
    width, height = entry_map.width + 8, entry_map.height + 16
    return (
        f"<h3>{html.escape(entry_map.entry)} <small>{len(nodes)} call sites</small></h3>"
        f'<div class="map"><svg viewBox="-4 -8 {width} {height}" '
        f'style="min-width:{width * 0.7:.0f}px;'
        f'max-width:{width}px" role="img" '
        f'aria-label="Migration map of {html.escape(entry_map.entry)}">'
        f"{''.join(parts)}</svg></div>"
    )


def _edge(source_left: int, source_top: int, left: int, top: int) -> str:
    half = NODE_HEIGHT // 2
    if left > source_left:
        x0, y0, x1, y1 = source_left + NODE_WIDTH, source_top + half, left, top + half
        bend = max(12, (x1 - x0) // 2)
        path = f"M{x0} {y0}C{x0 + bend} {y0} {x1 - bend} {y1} {x1} {y1}"
    else:
        x0, y0 = source_left + NODE_WIDTH // 2, source_top + NODE_HEIGHT
        x1, y1 = left + NODE_WIDTH // 2, top
        bend = max(14, (y1 - y0) // 2)
        path = f"M{x0} {y0}C{x0} {y0 + bend} {x1} {y1 - bend} {x1} {y1}"
    return f'<path class="edge" d="{path}"/>'


def _operator_row(operator: Mapping[str, Any]) -> str:
    name = html.escape(operator["name"])
    state = html.escape(operator["state"])
    tests = operator["tests"]
    origins = "".join(
        f"<li><code>{html.escape(origin['operation'])}</code> "
        f"{html.escape(origin['module_path'] or '(model)')} "
        f"<small>{html.escape(origin['source'])}</small></li>"
        for origin in operator["origins"]
    )
    reason = "".join(f"<p><b>{html.escape(line)}</b></p>" for line in operator["suspects"])
    if operator.get("reason"):
        reason += f"<p>{html.escape(operator['reason'])}</p>"
    source = (
        f"<details><summary>Kernel source</summary><pre>{html.escape(operator['source'])}</pre>"
        "</details>"
        if operator.get("source")
        else ""
    )
    repro = _repro(operator) + _diagnosis(operator)
    hidden = "" if state == "failed" else " hidden"
    return (
        f'<tr class="operator {state.replace(" ", "-")}" id="operator-{name}" tabindex="0">'
        f'<td><span class="chip">{state}</span></td><td class="name">{name}</td>'
        f"<td class=number>{operator['sites']}</td>"
        f"<td class=number>{tests['passed']}/{tests['total']}</td>"
        f"<td>{_bar(operator)}</td>"
        f"<td class=number>{_number(operator.get('max_abs_error'))}</td>"
        f"<td class=number>{_milliseconds(operator.get('target_ms'))}</td></tr>"
        f'<tr class="detail"{hidden}><td colspan="7">{reason}{repro}'
        f"<h4>Where it comes from</h4><ul>{origins or '<li>no origin known</li>'}</ul>"
        f"{source}</td></tr>"
    )


def _repro(operator: Mapping[str, Any]) -> str:
    """Where an operator's failure lies, and the command that shows it again where there is one."""
    if not operator.get("repro"):
        return ""
    folder = html.escape(operator["repro"])
    again = f"; replay it with <code>tapml replay {folder}</code>" if operator["replayable"] else ""
    return f"<p>What failed lies in <code>{folder}</code>{again}</p>"


def _diagnosis(operator: Mapping[str, Any]) -> str:
    """What localization found, a line each; evidence is indented under what it supports."""
    found = _findings(operator, evidence=True)
    return f"<h4>Diagnosis</h4>{found}" if found else ""


def _findings(operator: Mapping[str, Any], *, evidence: bool) -> str:
    items = "".join(
        f'<li class="{"evidence" if line.startswith("  ") else "finding"}">'
        f"{html.escape(line.strip())}</li>"
        for line in operator.get("diagnosis", ())
        if evidence or not line.startswith("  ")
    )
    return f'<ul class="diagnosis">{items}</ul>' if items else ""


def _bar(operator: Mapping[str, Any]) -> str:
    """The ratio on a logarithmic scale from 0.1 to 1e6, with the operator's limits marked."""
    ratio = operator["worst_ratio"]
    if ratio is None:
        # A NaN or an Inf out of place has no ratio that JSON could hold.
        text = "not finite" if operator["tests"]["total"] else "not run"
        return f'<span class="none">{text}</span>'
    text = _ratio(ratio)

    def place(value: float) -> float:
        clipped = min(max(value, 0.1), 1e6) if math.isfinite(value) else 1e6
        return (math.log10(clipped) + 1) / 7 * 100

    marks = "".join(
        f'<i style="left:{place(limit):.1f}%" title="{html.escape(name)} above {limit:g}"></i>'
        for name, limit in operator["limits"].items()
    )
    return (
        f'<span class="bar"><b style="width:{place(ratio):.1f}%"></b>{marks}</span>'
        f'<span class="ratio">{text}</span>'
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2e}"


def _milliseconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f} ms"


def _final(report: Mapping[str, Any]) -> str:
    final = report.get("final")
    if not final:
        return "<p>Not run: not every operator has moved.</p>"
    rows = "".join(
        f"<tr><td>{html.escape(str(row['prompt']))}</td><td>{html.escape(row['text'])}</td>"
        f"<td>{html.escape(row['verdict'])}</td></tr>"
        for row in final["prompts"]
    )
    return (
        f"<p>{html.escape(final['text'])}</p><div class=scroll><table><thead><tr><th>Prompt</th>"
        f"<th>What the target wrote</th><th>Verdict</th></tr></thead><tbody>{rows}</tbody></table>"
        "</div>"
    )


def _phases(report: Mapping[str, Any]) -> str:
    total = sum(phase["seconds"] for phase in report["phases"]) or 1.0
    return "".join(
        f"<tr><td>{html.escape(phase['group'])}</td><td>{html.escape(phase['name'])}</td>"
        f"<td>{html.escape(phase['platform'])}</td>"
        f"<td class=number>{phase['seconds']:.2f} s</td>"
        f'<td><span class="bar plain"><b style="width:{phase["seconds"] / total * 100:.1f}%">'
        "</b></span></td>"
        f"<td class=number>{'✓' if phase['once'] else '✗'}</td></tr>"
        for phase in report["phases"]
    )
