"""A matrix as a single HTML page without scripts or external resources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from importlib import resources
from typing import Any, Final

from tapml.report import html

_CLASSES: Final = {"not run": "absent"}


def render(matrix: Mapping[str, Any]) -> str:
    """The page of a matrix, given :meth:`tapml.matrix.report.MatrixReport.to_json`."""
    title = f"{matrix['title']} on several implementations"
    return html.render(
        title,
        styles=[
            html.page_file("style.css"),
            resources.files("tapml.matrix").joinpath("matrix.css").read_text("utf-8"),
        ],
        body="\n".join(
            (
                f"<main>\n<h1>{_text(title)}</h1>",
                f'<p class="headline">{_text(matrix["headline"])}. Each is compared with the '
                f"reference, {_text(matrix['reference'])}; implementations of one platform ran the "
                "same kernels on the same inputs.</p>",
                *_table(matrix),
                *_findings(matrix),
                *_reasons(matrix),
                "</main>",
            )
        ),
        footer="Written by tapml. Ratios are errors in units of sensitivity plus one ulp of the "
        "float64 result.",
    )


def _findings(matrix: Mapping[str, Any]) -> Iterator[str]:
    if not matrix["differences"]:
        return
    yield "<h2>Implementation differences</h2>"
    for each in matrix["differences"]:
        yield f'<section class="finding" id="{_anchor(each)}"><h3>{_text(each["operator"])}</h3>'
        yield f"<p>{_text(each['sides'])}.</p>"
        yield f'<p class="quiet">{_text(_place(each))}</p>'
        yield '<div class="scrolls"><table><thead><tr><th>implementation</th><th>value</th>'
        yield "<th>from float64</th><th>its verdict</th></tr></thead><tbody>"
        for reading in each["readings"]:
            accused = ' class="accused"' if reading["label"] in each["suspects"] else ""
            value = "nothing" if reading["value"] is None else _number(reading["value"])
            units = "" if reading["units"] is None else _units(reading["units"])
            yield (
                f'<tr{accused}><th scope="row">{_text(reading["label"])}'
                f'<span class="made-of">{_text(reading["made_of"])}</span></th>'
                f'<td class="number">{value}</td><td class="number">{units}</td>'
                f'<td class="{_class(reading["status"])} cell"><b>{reading["status"]}</b></td></tr>'
            )
        if each["expected"] is not None:
            yield (
                '<tr><th scope="row">float64</th><td class="number">'
                f"{_number(each['expected'])}</td><td></td><td></td></tr>"
            )
        yield "</tbody></table></div>"
        yield f"<p><b>Likely at fault:</b> {_text(each['accused'])}.</p>"
        for line in filter(None, (each["layer"], *each["explanations"])):
            yield f'<p class="quiet">{_text(line)}</p>'
        yield "</section>"


def _place(difference: Mapping[str, Any]) -> str:
    kernels = ", ".join(difference["kernels"])
    where = f"Kernel {kernels} for {difference['platform']}; {difference['differing']}"
    if difference["kind"] == "verdicts":
        return f"{where}, only in their verdicts."
    index = ", ".join(map(str, difference["index"]))
    return (
        f"{where}, most at {difference['output']}[{index}] of {difference['test']}: "
        f"{_units(difference['distance'])} apart, limit "
        f"{_number(difference['limit'], 3)}; elements beyond it: {difference['elements']}."
    )


def _table(matrix: Mapping[str, Any]) -> Iterator[str]:
    yield "<h2>Operators</h2>"
    if matrix["differences"]:
        yield '<p class="quiet">If a row is different, cells with the same letter agree.</p>'
    yield '<div class="scrolls"><table><thead><tr><th>operator</th>'
    for each in matrix["implementations"]:
        made_of = each["made_of"] or "not opened"
        yield f'<th>{_text(each["label"])}<span class="made-of">{_text(made_of)}</span></th>'
    yield "<th>between them</th></tr></thead><tbody>"
    whole = [] if matrix["end_to_end"] is None else [matrix["end_to_end"]]
    for row in (*matrix["operators"], *whole):
        marked = ' class="end-to-end"' if row in whole else ""
        yield f'<tr{marked}><th scope="row">{_text(row["operator"])}</th>'
        sides = _sides(row)
        for each in matrix["implementations"]:
            cell = row["cells"][each["label"]]
            ratio = "" if cell["status"] == "not run" else _number(cell["worst_ratio"], 3)
            yield (
                f'<td class="{_class(cell["status"])} cell" title="{_text(cell["reason"])}">'
                f"<b>{cell['status']}</b><small>{ratio}</small>"
                f"{sides.get(each['label'], '')}</td>"
            )
        yield _between(row) + "</tr>"
    yield "</tbody></table></div>"


def _sides(row: Mapping[str, Any]) -> dict[str, str]:
    """A letter for each implementation of a difference; the same letter means that they agree."""
    # Platforms are not compared with each other, so they get different letters.
    groups = [group for each in row["differences"] for group in each["groups"]]
    return {
        label: f'<span class="side">{chr(ord("A") + place % 26)}</span>'
        for place, group in enumerate(groups)
        for label in group
    }


def _anchor(difference: Mapping[str, Any]) -> str:
    return _text(f"{difference['platform']}/{difference['operator']}".replace(" ", "-"))


def _between(row: Mapping[str, Any]) -> str:
    if row["differences"]:
        links = (f'<a href="#{_anchor(each)}"><b>different</b></a>' for each in row["differences"])
        return f'<td class="different">{" ".join(links)}</td>'
    words = []
    for bits in row["bits"].values():
        if len(bits["identical"]) <= 1:
            words.append("equal bits")
        elif bits["max_ulps"] not in (0, "inf"):
            words.append(f"agree within {bits['max_ulps']:,.0f} ulp")
        else:
            words.append("agree")
    return f'<td class="quiet">{_text("; ".join(words))}</td>'


def _reasons(matrix: Mapping[str, Any]) -> Iterator[str]:
    """Why cells failed, and why columns were not run."""
    said = [
        f"<li><b>{_text(each['label'])}</b> was not run: {_text(each['problem'])}</li>"
        for each in matrix["implementations"]
        if each["problem"]
    ]
    whole = [] if matrix["end_to_end"] is None else [matrix["end_to_end"]]
    said += [
        f"<li><b>{_text(row['operator'])}</b> on {_text(label)}, {cell['status']}: "
        f"{_text(cell['reason'])}</li>"
        for row in (*matrix["operators"], *whole)
        for label, cell in row["cells"].items()
        if cell["status"] in ("fail", "degraded")
    ]
    if said:
        yield '<h2>Failures</h2>\n<ul class="reasons">'
        yield from said
        yield "</ul>"


def _class(status: str) -> str:
    return _CLASSES.get(status, status)


def _number(value: float | str, digits: int = 9) -> str:
    """A number; strict JSON has infinity and NaN as text."""
    return escape(value) if isinstance(value, str) else f"{value:.{digits}g}"


def _units(value: float | str) -> str:
    return "∞ units" if value == "inf" else f"{_number(value, 3)} units"


def _text(text: object) -> str:
    return escape(str(text))
