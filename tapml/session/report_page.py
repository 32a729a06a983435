"""A session's report as one HTML page, and the page that waits for the first report."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tapml.report.html import SCRIPTS, STYLES, page_file, render

OWN_STYLES: Final = ("overview.css", "operators.css", "operator.css")
OWN_SCRIPTS: Final = (
    "session.js", "operators.js", "migration_map.js", "next.js", "overview.js", "picture.js",
    "operator.js", "routes.js", "live.js",
)  # fmt: skip
"""In the order in which they run, behind those of every page."""
_TEXTS: Final = ("source", "reference_source")


def render_report(report: Mapping[str, Any], *, live: bool = False) -> str:
    """The page of a session.

    Sources are most of the bytes and nobody reads them all: they come behind the scripts.

    Parameters
    ----------
    report
        The data of ``report.json``, of this version of tapml or an earlier one.
    live
        Have the page ask for ``live.json`` beside it while it is open over HTTP.
    """
    shown, texts = _without_texts(report)
    title = (
        f"{report.get('model', {}).get('name', 'a model')} → "
        f"{report.get('target', {}).get('platform', 'a device')}"
    )
    outcome = html.escape(str(report.get("outcome", {}).get("text", "")))
    return render(
        title,
        shown,
        [*map(page_file, SCRIPTS), *map(_own, OWN_SCRIPTS)],
        [*map(page_file, STYLES), *map(_own, OWN_STYLES)],
        body='<div id="live" hidden></div>\n'
        f'<main id="overview"><h1>{html.escape(title)}</h1><p>{outcome}</p></main>\n'
        '<main id="page" tabindex="-1" hidden></main>',
        footer="Written by tapml. The same as data: <code>report.json</code> beside this page.",
        late={"texts": texts},
        live=live,
    )


def render_waiting(folder: Path) -> str:
    """The page of a session that has no report yet; it follows the run and becomes the report."""
    message = f"No session has got that far in {folder}. This page becomes the report by itself."
    return render(
        f"waiting for {folder}",
        None,
        [_own("waiting.js")],
        [page_file("style.css"), _own("waiting.css")],
        body='<main>\n<h1 id="phase">Waiting for a report</h1>\n'
        f'<p id="detail">{html.escape(message)}</p>\n<progress id="bar" hidden></progress>\n'
        '<p id="left"></p>\n</main>',
        live=True,
    )


def _own(name: str) -> str:
    return page_file(name, "tapml.session")


def _without_texts(
    report: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """The report without its operators' sources, and those by operator."""
    operators = report.get("operators", [])
    texts = {each["name"]: {key: each.get(key, "") for key in _TEXTS} for each in operators}
    plain = [{k: v for k, v in each.items() if k not in _TEXTS} for each in operators]
    return dict(report) | {"operators": plain}, texts
