"""The score as tables and as data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from scripts.mutants.kinds import KINDS
from scripts.mutants.scoring import Score

_COLUMNS: Final = ("kind", "made", "built", "observable", "detected", "missed", "equivalent")


def table(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """One row per kind, and their sum."""
    kinds = [kind for kind in KINDS if any(s.mutant.site.kind == kind for s in scores)]
    rows = [_row(kind, [s for s in scores if s.mutant.site.kind == kind]) for kind in kinds]
    return [*rows, _row("all", scores)]


def summary(scores: Sequence[Score], clean: float) -> dict[str, Any]:
    """The score, who found what, and the margin between right kernels and wrong ones.

    Parameters
    ----------
    clean
        Largest ratio of a right kernel, in units of its limit.
    """
    total = _row("all", scores)
    observable = total["observable"]
    finders = sorted({score.found_by for score in scores if score.found_by})
    nearest = min(_numeric(scores), key=lambda s: s.relative, default=None)
    return {
        "score": total["detected"] / observable if observable else None,
        "degraded": sum(score.status == "degraded" for score in scores),
        "operators": len({score.mutant.operator for score in scores}),
        "kinds": len({score.mutant.site.kind for score in scores}),
        "found_by": {name: sum(s.found_by == name for s in scores) for name in finders},
        "largest_clean": clean,
        "smallest_detected": None if nearest is None else nearest.relative,
        "smallest_detected_ratio": None if nearest is None else nearest.ratio,
        "smallest_detected_mutant": None if nearest is None else nearest.mutant.name,
        "margin": None if nearest is None or not clean else nearest.relative / clean,
    }


def lines(scores: Sequence[Score], clean: float) -> list[str]:
    """Everything a reader wants, as text."""
    rows = table(scores)
    widths = [max(len(str(row[c])) for row in [*rows, {c: c}]) for c in _COLUMNS]
    printed = [_line(_COLUMNS, widths)] + [
        _line([str(row[c]) for c in _COLUMNS], widths) for row in rows
    ]
    facts = summary(scores, clean)
    printed.append("")
    if facts["score"] is not None:
        total = rows[-1]
        printed.append(
            f"score: {total['detected']} of {total['observable']} observable mutants detected "
            f"({100 * facts['score']:.1f} %), over {facts['operators']} operators and "
            f"{facts['kinds']} kinds; by "
            + ", ".join(f"{name} {count}" for name, count in facts["found_by"].items())
        )
    if facts["smallest_detected"] is not None:
        printed.append(
            f"margin: a right kernel reaches {clean:.3g} of its limit, the nearest wrong one found "
            f"by its numbers {facts['smallest_detected']:.3g} ({facts['smallest_detected_mutant']})"
            + (f": {facts['margin']:.3g} times as much" if facts["margin"] else "")
        )
    for title, outcome in (("missed", "missed"), ("equivalent", "equivalent")):
        chosen = [score for score in scores if score.outcome == outcome]
        if chosen:
            printed += ["", f"{title}:", *(_describe(score) for score in chosen)]
    return printed


def _row(kind: str, scores: Sequence[Score]) -> dict[str, Any]:
    count = {
        outcome: sum(score.outcome == outcome for score in scores)
        for outcome in ("not built", "equivalent", "detected", "missed")
    }
    return {
        "kind": kind,
        "made": len(scores),
        "built": len(scores) - count["not built"],
        "observable": count["detected"] + count["missed"],
        "detected": count["detected"],
        "missed": count["missed"],
        "equivalent": count["equivalent"],
    }


def _numeric(scores: Iterable[Score]) -> list[Score]:
    """Mutants found by a ratio beyond its limit; NaN and Inf out of place have none."""
    return [
        score for score in scores if score.found_by == "numbers" and 1.0 < score.relative < math.inf
    ]


def _describe(score: Score) -> str:
    site = score.mutant.site
    where = f" line {site.line}" if site.line else ""
    text = (
        f"  {score.mutant.name} {score.mutant.operator}: {site.kind}, {site.rule}{where}: "
        f"{_short(site.before)} -> {_short(site.after)}"
    )
    if score.outcome == "missed":
        text += f"\n      changed {score.observed}; {score.relative:.3g} of the limit, " + (
            f"the right kernel {score.clean:.3g}; {score.reason}"
        )
    if score.unchecked:
        text += f"\n      not shown to Oclgrind: {score.unchecked}"
    return text


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 90 else f"{flat[:60]} ... {flat[-25:]}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)])
