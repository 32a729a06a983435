"""The report of a fuzzer: a page of models, settings and clusters, and one for each cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tapml.distributed.fuzzing.campaign import ModelResult
from tapml.distributed.fuzzing.clusters import Cluster, Finding
from tapml.distributed.page import STATUSES
from tapml.distributed.results import RunResult
from tapml.durable.files import write_bytes
from tapml.report.html import Cell, Section, render_sections
from tapml.report.layout import Band, GraphMap, Node, lay_out

PAGE: Final = "report.html"


def write_pages(
    folder: Path, results: Sequence[ModelResult], clusters: Sequence[Cluster], place: Path
) -> Path:
    """Write ``report.html`` in the fuzzer's folder and in each cluster's, which are in `place`.

    Returns the first one's path. Raises SetupError if one cannot be written.
    """
    for each in clusters:
        write_bytes(place / each.name / PAGE, _of_cluster(each, place / each.name).encode())
    write_bytes(folder / PAGE, _of_all(results, clusters, place).encode())
    return folder / PAGE


def _of_all(results: Sequence[ModelResult], clusters: Sequence[Cluster], place: Path) -> str:
    runs = [run for each in results if each.check is not None for run in each.check.results]
    findings = sum(len(each.findings) for each in clusters)
    failed = [f"{each.name} does not run on one device: {each.failure}" for each in results]
    return render_sections(
        "N devices against one: generated models",
        f"{len(results)} models, {len(runs)} runs: {findings} findings of {len(clusters)} kinds",
        [
            {
                "id": "map",
                "title": "Models and settings",
                "text": [
                    "Each row is a model, each box a setting. A red box is a finding.",
                    *(text for text, each in zip(failed, results, strict=True) if each.failure),
                ],
                "maps": [_map(results)],
            },
            {
                "id": "kinds",
                "title": "Kinds of findings",
                "text": [] if clusters else ["There is no finding."],
                "table": (
                    ("kind", "findings", "models", "mistake", "triggers", "largest rate", "page"),
                    [_row(each, place) for each in clusters],
                ),
            },
        ],
    )


def _row(each: Cluster, place: Path) -> list[Cell]:
    return [
        {"status": STATUSES.get(each.outcome, "fail"), "text": each.signature},
        len(each.findings),
        each.models,
        each.mistake,
        ", ".join(each.triggers),
        ", ".join(each.published[:3]),
        str(place / each.name / PAGE),
    ]


def _map(results: Sequence[ModelResult]) -> GraphMap:
    settings = {
        run.setting.name: None
        for each in results
        if each.check is not None
        for run in each.check.results
    }
    columns = {name: column for column, name in enumerate(settings)}
    nodes = [
        Node(
            f"{each.name}: {run.setting.name}",
            each.name,
            run.setting.name,
            STATUSES.get(run.outcome, "fail"),
            facts=_facts(run),
            column=columns[run.setting.name],
        )
        for each in results
        if each.check is not None
        for run in each.check.results
    ]
    bands = [Band(each.name) for each in results if each.check is not None]
    return lay_out(nodes, (), bands, name="models and settings")


def _facts(run: RunResult) -> tuple[tuple[str, str], ...]:
    facts = (
        ("outcome", str(run.outcome)),
        ("first wrong tensor", run.first_wrong),
        ("mistake", run.mistake),
        ("reason", run.reason),
    )
    return tuple(fact for fact in facts if fact[1])


def _of_cluster(cluster: Cluster, place: Path) -> str:
    facts = [
        ("outcome", str(cluster.outcome)),
        ("mistake", cluster.mistake),
        ("remedy", cluster.remedy),
        ("triggers", ", ".join(cluster.triggers)),
        ("layers with the largest rate of change", ", ".join(cluster.published)),
        ("models", str(cluster.models)),
        ("settings", str(cluster.settings)),
        ("look at", "; ".join(f"{f.model}, {f.result.setting.name}" for f in cluster.sampled)),
        ("rerun with a fix", f"tapml distributed rerun {place} --fix FILE.py"),
    ]
    sections: list[Section] = [
        {
            "id": "kind",
            "title": "What the findings share",
            "text": [f"{cluster.signature[:1].upper()}{cluster.signature[1:]}."],
            "facts": [fact for fact in facts if fact[1]],
        },
        {
            "id": "findings",
            "title": "Findings",
            "table": (
                ("model", "setting", "first wrong tensor", "ranks", "ratio", "paper's oracle"),
                [_finding(each) for each in cluster.findings],
            ),
        },
    ]
    script = place / "script.py"
    if script.is_file():
        sections.append(
            {
                "id": "script",
                "title": "Shown without tapml",
                "text": [f"{script} exits with 1 while the bug is there."],
                "source": script.read_text(encoding="utf-8"),
                "language": "python",
            }
        )
    return render_sections(
        f"{cluster.name}: N devices against one",
        f"{len(cluster.findings)} findings in {cluster.models} models",
        sections,
    )


def _finding(each: Finding) -> list[Cell]:
    run = each.result
    return [
        each.model,
        run.setting.name,
        run.first_wrong,
        ", ".join(map(str, run.ranks)),
        run.ratio,
        run.published or "",
    ]
