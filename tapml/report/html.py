"""The report as one HTML file: self-contained, no network, light and dark, desktop and phone.

The file holds the report as data and the scripts that draw it: a page is made when it is looked at,
so that a session of hundreds of operators opens as fast as a small one. Sources are most of the
bytes and nobody reads them all: they come behind the scripts, which draw the first page without
waiting for them. Nothing of the report becomes markup: the scripts write text nodes only, and the
browser is told to run no script but these.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from importlib import resources
from string import Template
from typing import Any, Final

STYLES: Final = ("style.css", "table.css", "overview.css", "map.css", "operator.css")
SCRIPTS: Final = (
    "elements.js", "numbers.js", "report.js", "table.js", "map_view.js", "map.js", "next.js",
    "overview.js", "source.js", "picture.js", "operator.js", "routes.js", "live.js",
)  # fmt: skip
"""In the order in which they run."""
_TEXTS: Final = ("source", "reference_source")


def render(report: Mapping[str, Any], *, live: bool = False) -> str:
    """The page of a report.

    Parameters
    ----------
    report
        The data of ``report.json``, of this version of tapml or an earlier one.
    live
        Have the page ask for ``live.json`` beside it while it is open over HTTP.
    """
    shown, texts = _without_texts(report)
    scripts = [_file(name) for name in SCRIPTS]
    styles = [_file(name) for name in STYLES]
    outcome = report.get("outcome", {})
    return Template(_file("page.html.in")).substitute(
        live=" data-live" if live else "",
        policy=_policy(scripts, styles),
        title=html.escape(
            f"{report.get('model', {}).get('name', 'a model')} → "
            f"{report.get('target', {}).get('platform', 'a device')}"
        ),
        outcome=html.escape(str(outcome.get("text", ""))),
        styles="".join(f"<style>{text}</style>" for text in styles),
        data=_embedded(shown),
        scripts="".join(f"<script>{text}</script>" for text in scripts),
        texts=_embedded(texts),
    )


def _without_texts(
    report: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """The report without its operators' sources, and those by operator."""
    operators = report.get("operators", [])
    texts = {each["name"]: {key: each.get(key, "") for key in _TEXTS} for each in operators}
    plain = [{k: v for k, v in each.items() if k not in _TEXTS} for each in operators]
    return dict(report) | {"operators": plain}, texts


def _embedded(data: Any) -> str:
    """Strict JSON that ends no script element."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _policy(scripts: list[str], styles: list[str]) -> str:
    """What the browser may run and fetch: these scripts and styles, and what a server sends."""
    return (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'"
    )


def _hashes(texts: list[str]) -> str:
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def _file(name: str) -> str:
    return resources.files("tapml.report").joinpath("page", name).read_text("utf-8")
