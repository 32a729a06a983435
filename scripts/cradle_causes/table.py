"""The table of docs/compare.md about planted causes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from scripts.cradle_causes.causes import CAUSES, Cause
from scripts.cradle_causes.further import FURTHER, INT8
from scripts.marked_section import write_between
from tapml.comparing.result import NOT_FAULTS

BEGIN: Final = "<!-- scripts/compare_causes.py FOLDER --table writes from here -->"
END: Final = "<!-- end of the causes -->"
ONNX_BEGIN: Final = "<!-- of ONNX models, from here -->"
ONNX_END: Final = "<!-- end of the causes on ONNX models -->"
FURTHER_BEGIN: Final = "<!-- scripts/compare_causes.py FOLDER --further --table, from here -->"
FURTHER_END: Final = "<!-- end of the further faults -->"
INT8_BEGIN: Final = "<!-- scripts/compare_causes.py FOLDER --int8 --table, from here -->"
INT8_END: Final = "<!-- end of the faults of 8 bits -->"


def misses(studied: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each faulty pair that was not detected, or laid at another node."""
    lines = []
    for document in studied:
        for pair in document["pairs"]:
            if not pair["cause"]:
                continue
            what = f"{document['model']}, {pair['cause']}, {' / '.join(pair['backends'])}"
            if pair["status"] == "agree":
                lines.append(f"{what}: not detected ({pair['reason']})")
            elif not _is_exact(pair):
                lines.append(f"{what}: laid at {pair['layer']}, acted in {pair['acted'][0]}")
    return lines


def _is_exact(pair: dict[str, Any]) -> bool:
    """Whether the layer is the first where the patch acted, or where it ended the run.

    A fault of layers together has none: then the backend that compiles wrongly must be blamed, and
    the layer that it is narrowed down to must be one where the patch acted.
    """
    if pair.get("fused"):
        blamed = (pair["blamed"] or "").startswith("on_")
        return blamed and not pair["layer"] and (pair["between"] or [""])[-1] in pair["acted"]
    return pair["layer"] in [pair["acted"][0], *pair.get("ended", ())]


def _published(pair: dict[str, Any]) -> tuple[bool, bool]:
    """Whether the published rule's first highlighted node is the culprit, and whether any is."""
    highlighted = [each["name"] for each in pair["nodes"] if each["highlighted"]]
    acted = set(pair["acted"])
    return highlighted[:1] == pair["acted"][:1], not acted.isdisjoint(highlighted)


def write_table(page: Path, studied: Sequence[dict[str, Any]]) -> None:
    """Put the tables of Keras and of ONNX models between their marks of a page.

    One that nothing was studied of stays as it is.
    """
    of_onnx = [each for each in studied if _is_onnx(each)]
    others = [each for each in studied if not _is_onnx(each)]
    for begin, end, some in ((BEGIN, END, others), (ONNX_BEGIN, ONNX_END, of_onnx)):
        if some:
            write_between(page, begin, end, table(some))


def write_further(page: Path, studied: Sequence[dict[str, Any]]) -> None:
    """Put the table of the further faults between its marks of a page."""
    of_torch = sum(_is_torch(each) for each in studied)
    said = f"{len(studied)} models, {of_torch} of them torch modules. {_clean(studied)}\n\n"
    write_between(page, FURTHER_BEGIN, FURTHER_END, said + table(studied, FURTHER))


def write_int8(page: Path, studied: Sequence[dict[str, Any]]) -> None:
    """Put the table of the faults of 8 bits between its marks of a page."""
    said = f"{_clean(studied)}\n\n"
    write_between(page, INT8_BEGIN, INT8_END, said + table(studied, INT8))


def _clean(studied: Sequence[dict[str, Any]]) -> str:
    clean = [pair for each in studied for pair in each["pairs"] if not pair["cause"]]
    accused = sum(each["status"] not in NOT_FAULTS for each in clean)
    return f"{len(clean)} pairs have no fault, and {accused} of them are accused."


def _is_torch(document: dict[str, Any]) -> bool:
    return any(name.startswith("on_program") for pair in document["pairs"]
               for name in pair["backends"])  # fmt: skip


def _is_onnx(document: dict[str, Any]) -> bool:
    return any(name.startswith("on_onnx") for pair in document["pairs"]
               for name in pair["backends"])  # fmt: skip


def table(studied: Sequence[dict[str, Any]], causes: Sequence[Cause] = CAUSES) -> str:
    """A row for each cause: models, pairs, what each tier detects, and where it is laid."""
    lines = [
        "| cause | models | pairs | detected | elementwise | D_CLASS ≥ 8 | D_MAD ≥ 0.2 | "
        "first node exact | published: first | published: any | majority right |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    rows: list[list[str]] = []
    everything: list[dict[str, Any]] = []
    for cause in causes:
        pairs = [pair | {"model": each["model"]} for each in studied for pair in each["pairs"]
                 if pair["cause"] == cause.name]  # fmt: skip
        if pairs:
            everything += pairs
            rows.append(
                [f"{cause.title}{f' ({cause.root})' if cause.root else ''}", *_cells(pairs)]
            )
    rows.append(["all", *_cells(everything)])
    return "\n".join([*lines, *(f"| {' | '.join(each)} |" for each in rows), ""])


def _cells(pairs: Sequence[dict[str, Any]]) -> list[str]:
    detected = [each for each in pairs if each["status"] != "agree"]
    compared = [each for each in pairs if each["nodes"]]
    tiers = [
        sum(each["metrics"].get(name, {}).get("triggering", 0) > 0 for each in pairs)
        for name in ("elementwise", "D_CLASS", "D_MAD")
    ]
    applies = [
        sum(name in each["metrics"] for each in pairs)
        for name in ("elementwise", "D_CLASS", "D_MAD")
    ]
    published = [_published(each) for each in compared]
    # In a pair of healthy and faulty, with a second healthy backend beside them.
    voted = [each for each in detected if any(name.startswith("on_") for name in each["backends"])
             and not all(name.startswith("on_") for name in each["backends"])]  # fmt: skip
    right = sum(each["blamed"] is not None and each["blamed"].startswith("on_") for each in voted)
    return [
        str(len({each["model"] for each in pairs})),
        str(len(pairs)),
        str(len(detected)),
        *(
            f"{found} of {possible}" if possible else "-"
            for found, possible in zip(tiers, applies, strict=True)
        ),
        f"{sum(map(_is_exact, detected))} of {len(detected)}",
        *(
            f"{sum(each[place] for each in published)} of {len(published)}" if published else "-"
            for place in (0, 1)
        ),
        f"{right} of {len(voted)}" if voted else "-",
    ]
