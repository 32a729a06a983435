"""A check as a self-contained page: causes first, each with its rules, values and source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tapml.invariants.checking import Cause, CheckReport, Finding, step_text
from tapml.invariants.invariant import Invariant
from tapml.invariants.precondition import text_of
from tapml.invariants.relation import short_name
from tapml.report.html import Cell, Section, render_sections
from tapml.runs.wording import counted

_AROUND: Final = 6
_LONGEST_SOURCE: Final = 1 << 20
_IDLE_SHOWN: Final = 200


def render(
    report: CheckReport, *, version: int | None = None, watched: Sequence[Invariant] = ()
) -> str:
    """The page of a check; with a version, of one that goes on, and what it watches for.

    Numbers that change with every step are in the live headline alone.
    """
    live = version is not None
    ranks = ", ".join(map(str, report.ranks))
    status = {"status": "fail" if report.violated else "pass", "text": str(report.violated)}
    result: Section = {
        "id": "summary",
        "title": "Result",
        "text": list(report.notes),
        "table": (
            ["run", "steps", "ranks", "violated", "held", "did not apply"],
            [[report.run, report.steps, ranks, status, report.held, len(report.idle)]],
        ),
    }
    sections: list[Section] = [] if live else [result]
    for number, cause in enumerate(report.causes, 1):
        sections += _cause(number, cause, live=live)
    if report.idle and not live:
        sections.append(
            {
                "id": "idle",
                "title": "Invariants that did not apply",
                "text": [
                    "The run never came to what they are about: it calls other APIs, or a "
                    "precondition never held.",
                    *([f"{report.idle_text}."] if report.never_called else []),
                ],
                "table": (
                    ["invariant", "relation"],
                    [[each.text, each.relation] for each in report.idle[:_IDLE_SHOWN]],
                ),
            }
        )
    if watched:
        sections.append(
            {
                "id": "watched",
                "title": f"What is watched: {counted(len(watched), 'invariant')}",
                "table": (
                    ["invariant", "relation"],
                    [[each.text, each.relation] for each in watched[:_IDLE_SHOWN]],
                ),
            }
        )
    return render_sections(
        f"Training invariants: {report.run}", report.headline + ".", sections, version=version
    )


def _cause(number: int, cause: Cause, *, live: bool) -> list[Section]:
    head = cause.head
    facts = [
        ("what was expected", head.invariant.text),
        ("first violated", step_text(cause.first_step)),
        ("rank", ", ".join(map(str, sorted({r for each in cause.findings for r in each.ranks})))),
        ("variables or calls", _listed(head)),
    ]
    if head.invariant.precondition:
        when = text_of(head.invariant.precondition)
        facts += [("when it applies", when)] if when else []
    if cause.source:
        facts.append(("line of the script", cause.source))
    values = ", ".join(f"{name} = {value}" for name, value in head.first.values.items())
    facts.append(("values then", values or "none recorded"))
    if len(cause.findings) == 1:
        facts.append(("relation", head.invariant.relation))
        facts += [] if live else [("times", str(head.count))]
    section: Section = {
        "id": f"cause-{number}",
        "title": f"Cause {number}: {head.first.found}",
        "facts": facts,
    }
    if len(cause.findings) > 1:
        times = [] if live else ["times"]
        section["table"] = (
            ["violated invariant", "relation", "first in", *times, "found"],
            [
                [
                    each.invariant.text,
                    each.invariant.relation,
                    step_text(each.first.step),
                    *([] if live else [each.count]),
                    each.first.found,
                ]
                for each in cause.findings
            ],
        )
    found = [section]
    excerpt = _excerpt(cause.source)
    if excerpt:
        table: tuple[list[str], list[list[Cell]]] = (["line", "source"], excerpt)
        found.append({"id": f"source-{number}", "title": cause.source, "table": table})
    return found


def _listed(finding: Finding) -> str:
    names = [short_name(name) for name in finding.subjects]
    more = f" and {len(names) - _AROUND} more" if len(names) > _AROUND else ""
    return ", ".join(names[:_AROUND]) + more


def _excerpt(source: str) -> list[list[Cell]]:
    """The lines around a place, if the file is there as text."""
    name, _, line = source.rpartition(":")
    path = Path(name)
    if not line.isdigit() or not path.is_file() or path.stat().st_size > _LONGEST_SOURCE:
        return []
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    at = int(line)
    first = max(at - _AROUND, 1)
    return [
        [{"status": "fail", "text": str(n)} if n == at else str(n), {"code": _indented(text)}]
        for n, text in enumerate(lines[first - 1 : at + _AROUND], first)
    ]


def _indented(text: str) -> str:
    # A table closes up ordinary spaces.
    plain = text.expandtabs(4)
    return "\N{NO-BREAK SPACE}" * (len(plain) - len(plain.lstrip())) + plain.lstrip()
