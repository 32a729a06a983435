"""The report of a check as one HTML page: a map of settings and phases, and each finding."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

from tapml.distributed.results import PHASES, Check, Outcome, RunResult
from tapml.durable.files import write_bytes
from tapml.report.html import Cell, Section, render_sections
from tapml.report.layout import Band, Edge, GraphMap, Node, lay_out

STATUSES: Final = {
    Outcome.EQUAL: "pass",
    Outcome.SLOW: "degraded",
    Outcome.NOT_RUN: "absent",
    Outcome.REFUSED: "absent",
    Outcome.REFERENCE_NOT_FINITE: "absent",
}
"""How a page shows outcomes; others are failures."""
_MEANT: Final = {
    "start": "at start",
    "forward": "outputs",
    "gradient": "gradients",
    "state": "states",
    "update": "updates",
    "buffer": "buffers",
    "prediction": "predictions",
}


def write_page(check: Check, path: Path) -> None:
    """Write the page. Raises SetupError if it cannot be written."""
    write_bytes(path, render(check).encode())


def render(check: Check) -> str:
    """The page's text."""
    name = Path(check.job).name
    counts: dict[str, int] = {}
    for each in check.results:
        counts[str(each.outcome)] = counts.get(str(each.outcome), 0) + 1
    headline = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    return render_sections(
        f"{name}: N devices against one",
        f"{len(check.results)} setting{'s' * (len(check.results) != 1)}: {headline}",
        [_overview(check), _map(check), *map(_finding, _shown(check)), _job(check)],
    )


def _shown(check: Check) -> Iterator[RunResult]:
    return (each for each in check.results if each.outcome not in (Outcome.EQUAL, Outcome.NOT_RUN))


def _overview(check: Check) -> Section:
    rows: list[list[Cell]] = [
        [
            each.setting.name,
            {"status": STATUSES.get(each.outcome, "fail"), "text": str(each.outcome)},
            each.first_wrong,
            ", ".join(map(str, each.ranks)),
            each.ratio,
            each.published or "",
            each.mistake or (each.reason if each.outcome is not Outcome.INCONSISTENT else ""),
        ]
        for each in check.results
    ]
    columns = (
        "setting",
        "outcome",
        "first wrong tensor",
        "ranks",
        "ratio",
        "paper's oracle",
        "mistake or reason",
    )
    return {"id": "settings", "title": "Settings", "table": (columns, rows)}


def _map(check: Check) -> Section:
    """One map of settings by phases, and one of tensors for each finding."""
    maps = [_phases(check)]
    maps += [_tensors(each) for each in check.results if each.deviations]
    return {
        "id": "map",
        "title": "Where it starts",
        "text": [
            "Each row is a setting, each column a phase of the step in the order in which it is "
            "computed: weights and buffers at the start, outputs of modules, gradients, the "
            "optimizer's states, updates of the weights, buffers, predictions. The first red box "
            "of a row is where the difference starts."
        ],
        "maps": maps,
    }


def _phases(check: Check) -> GraphMap:
    nodes, edges, bands = [], [], []
    for each in check.results:
        band = each.setting.name
        bands.append(Band(band))
        names = [f"{band}: {phase}" for phase in PHASES]
        for column, (phase, name) in enumerate(zip(PHASES, names, strict=True)):
            count, wrong = each.compared.get(phase, 0), each.wrong.get(phase, 0)
            status = "fail" if wrong else "pass" if count else "absent"
            facts = [("compared", f"{count} tensors"), ("wrong", str(wrong))]
            if wrong:
                first = next((d for d in each.deviations if d.phase == phase), None)
                facts += [] if first is None else [("first", f"{first.tensor}, step {first.step}")]
            if not count and each.outcome is not Outcome.EQUAL:
                facts.append((str(each.outcome), each.reason))
            said = f"{wrong}/{count}" if wrong else str(count) if count else ""
            label = f"{_MEANT[phase]} {said}".strip()
            nodes.append(Node(name, band, label, status, facts=tuple(facts), column=column))
        edges += [Edge(a, b) for a, b in pairwise(names)]
    return lay_out(nodes, edges, bands, name="settings and phases")


def _tensors(result: RunResult) -> GraphMap:
    """The first wrong tensors of one finding, by phase."""
    nodes, bands = [], {}
    places: dict[str, int] = {}
    for each in result.deviations:
        band = f"step {each.step}: {_MEANT[each.phase]}"
        bands[band] = Band(band)
        column = places.get(band, 0)
        places[band] = column + 1
        facts = [
            ("ranks", ", ".join(map(str, each.ranks))),
            ("error", f"{each.error:.3g}"),
            ("ratio", "" if each.ratio is None else f"{each.ratio:.6g}"),
            ("note", each.note),
        ]
        nodes.append(
            Node(
                f"{each.phase} {each.step} {each.tensor}",
                band,
                each.tensor,
                "fail",
                heat=min(1.0, max(0.2, each.error)),
                facts=tuple(fact for fact in facts if fact[1]),
                column=column,
            )
        )
    return lay_out(nodes, (), list(bands.values()), name=result.setting.name)


def _finding(result: RunResult) -> Section:
    facts = [
        ("first wrong tensor", result.first_wrong if result.tensor else ""),
        ("phase", result.phase),
        ("step", str(result.step) if result.tensor else ""),
        ("ranks", ", ".join(map(str, result.ranks))),
        ("ratio to one device", "" if result.ratio is None else f"{result.ratio:.6g}"),
        ("error", "" if result.error is None else f"{result.error:.3g}"),
        ("limit", "" if result.limit is None else f"{result.limit:.1g} ({result.precision})"),
        ("mistake", result.mistake),
        ("remedy", result.remedy),
        ("triggers", ", ".join(result.triggers)),
        ("paper's oracle", result.published or ""),
    ]
    text = [f"{result.reason[:1].upper()}{result.reason[1:]}.", *result.details]
    hidden = sum(result.wrong.values()) - len(result.deviations)
    if hidden > 0:
        text.append(f"The table shows the first {len(result.deviations)}; {hidden} more are wrong.")
    section: Section = {
        "id": result.setting.name.replace(" ", "-"),
        "title": f"{result.setting.name}: {result.outcome}",
        "text": text,
        "facts": [fact for fact in facts if fact[1]],
    }
    if result.deviations:
        rows: list[list[Cell]] = [
            [
                each.step,
                each.phase,
                each.tensor,
                ", ".join(map(str, each.ranks)),
                f"{each.error:.3g}",
                each.ratio,
                each.note,
            ]
            for each in result.deviations
        ]
        columns = ("step", "phase", "tensor", "ranks", "error", "ratio", "note")
        section["table"] = (columns, rows)
    return section


def _job(check: Check) -> Section:
    facts = check.facts
    rows = [
        ("job", check.job),
        ("steps", str(check.steps)),
        ("samples", str(facts.samples)),
        ("parameters", f"{facts.parameters} ({facts.elements} elements, {facts.frozen} frozen)"),
        ("judged in", "float64" if facts.twin else f"float32: {facts.twin_reason}"),
        ("trained", "yes" if facts.trains else "no: no parameter changes on one device"),
        ("BatchNorm", ", ".join(facts.batch_norm)),
        ("dropout", ", ".join(facts.dropout)),
        *((f"version of {name}", version) for name, version in check.versions.items()),
        ("time", f"{check.seconds:.1f} s"),
    ]
    skipped = sorted({text for each in check.results for text in each.not_compared})
    return {
        "id": "job",
        "title": "The job",
        "facts": [row for row in rows if row[1]],
        "text": [f"Not compared: {text}." for text in skipped[:20]],
    }
