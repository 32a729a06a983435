"""A page as one HTML file: self-contained, no network, light and dark, desktop and phone.

The file holds data and the scripts that draw it. A page of hundreds of operators opens as fast as a
small one, because a script draws only the part that is looked at. Nothing of the data becomes
markup: the scripts write text nodes only, and the page's policy allows no script but these.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any, Final, TypeAlias, TypedDict

from tapml.durable.strict_json import to_strict
from tapml.report.content_policy import content_policy
from tapml.report.layout import GraphMap

STYLES: Final = ("style.css", "parts.css", "map.css")
SCRIPTS: Final = ("elements.js", "numbers.js", "map_view.js", "map.js", "source.js")
"""What every page may use, in the order in which it runs."""
_NOSCRIPT: Final = (
    "<noscript><p>This page is drawn by JavaScript, which is switched off here.</p></noscript>"
)

Cell: TypeAlias = str | int | float | Mapping[str, str] | None
"""A cell of a table: text, a number, ``{"code": ...}`` or ``{"status": ..., "text": ...}``."""


class Section(TypedDict, total=False):
    """A titled part of a page; what it has is shown in this order."""

    id: str
    title: str
    text: Sequence[str]
    facts: Sequence[tuple[str, str]]
    table: tuple[Sequence[str], Sequence[Sequence[Cell]]]
    maps: Sequence[GraphMap]
    source: str
    language: str


def render(
    title: str,
    data: Any = None,
    scripts: Sequence[str] = (),
    styles: Sequence[str] = (),
    *,
    body: str = "",
    footer: str = "Written by tapml.",
    late: Mapping[str, Any] | None = None,
    live: bool = False,
) -> str:
    """A page.

    Parameters
    ----------
    title
        Plain text.
    data
        JSON data for the scripts, in the element ``data``; NaN and Inf become text.
    scripts, styles
        Their texts, in the order in which they run and apply; see :func:`page_file`.
    body, footer
        Markup of the page: the places that the scripts fill, or a page without scripts.
    late
        More data by the id of its element. It comes behind the scripts, which draw the first view
        without waiting for it: for what is large and read by few.
    live
        Mark the page as served, so that its scripts may ask the server for news.
    """
    code = [_NOSCRIPT] if data is None else [_NOSCRIPT, _data("data", data)]
    code += [f"<script>{text}</script>" for text in scripts]
    code += [_data(name, value) for name, value in (late or {}).items()]
    return Template(page_file("frame.html.in")).substitute(
        live=" data-live" if live else "",
        policy=content_policy(scripts, styles),
        title=html.escape(title),
        styles="".join(f"<style>{text}</style>" for text in styles),
        body=body,
        footer=footer,
        code="\n".join(code) if scripts else "",
    )


def render_sections(
    title: str, headline: str, sections: Sequence[Section], *, version: int | None = None
) -> str:
    """A page of titled sections: text, facts, tables, sources and graph maps.

    With a version it is a page of work in progress: it asks its server for ``live.json``, shows the
    ``text`` in it as the headline, and loads itself again when the ``version`` there is another.
    """
    plain = [
        dict(each) | {"maps": [entry.to_json() for entry in each.get("maps", ())]}
        for each in sections
    ]
    live = version is not None
    # What the server tells takes the headline's place.
    news = ' id="live" role="status"' if live else ""
    heading = f'<h1>{html.escape(title)}</h1><p class="soft"{news}>{html.escape(headline)}</p>'
    scripts = (*SCRIPTS, "sections.js", "reload.js") if live else (*SCRIPTS, "sections.js")
    return render(
        title,
        {"sections": plain, "version": version},
        [page_file(name) for name in scripts],
        [page_file(name) for name in STYLES],
        body=f'<main id="page"><header>{heading}</header></main>',
        live=live,
    )


def page_file(name: str, package: str = "tapml.report") -> str:
    """The text of a script or style: a file in the folder ``page`` of a package."""
    return resources.files(package).joinpath("page", name).read_text("utf-8")


def _data(name: str, value: Any) -> str:
    """Strict JSON in an element that no text inside can end."""
    text = json.dumps(to_strict(value), allow_nan=False, separators=(",", ":"))
    escaped = text.replace("<", "\\u003c")
    return f'<script type="application/json" id="{html.escape(name)}">{escaped}</script>'
