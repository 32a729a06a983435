"""A report in a browser: showing it, and asking what is seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tapml.report.html import render
from tests.report.browser import Page

IN_SIGHT = """
(() => {
  const [a, b] = [map.view.size, document.querySelector(".node.current").getBoundingClientRect()];
  return b.top > a.top && b.bottom < a.bottom && b.left > a.left && b.right < a.right;
})()
"""
"""Whether the place that was found lies within the map's window."""


def show(browser: Page, folder: Path, report: dict[str, Any]) -> None:
    path = folder / "report.html"
    path.write_text(render(report), encoding="utf-8")
    browser.open(path)


def visit(browser: Page, part: str) -> None:
    """Follow a link to a part of the report."""
    browser.evaluate(f"location.hash = {json.dumps(part)}; route()")


def text(browser: Page, selector: str) -> str:
    found = browser.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")
    return str(found)


def count(browser: Page, selector: str) -> int:
    return int(browser.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length"))


def wait_for(browser: Page, expression: str) -> None:
    """Until an expression is true; the browser draws when it is ready."""
    # A function, which is read once: the page's policy lets nothing be read later.
    browser.tab.wait_for_function(f"() => {expression}")
