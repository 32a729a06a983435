"""A session's report in a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tapml.session.report_page import render_report
from tests.report.browser import Page
from tests.report.shown import in_sight

IN_SIGHT: Final = in_sight("map")
"""Whether the call site that was found lies within the map's window."""


def show(browser: Page, folder: Path, report: dict[str, Any]) -> None:
    path = folder / "report.html"
    path.write_text(render_report(report), encoding="utf-8")
    browser.open(path)


def visit(browser: Page, part: str) -> None:
    """Follow a link to a part of the report."""
    browser.evaluate(f"location.hash = {json.dumps(part)}; route()")
