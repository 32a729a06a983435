"""A page in a browser: asking what is seen."""

from __future__ import annotations

import json

from tests.report.browser import Page


def in_sight(graph_map: str) -> str:
    """Whether the place that was found lies within the window of a map, as an expression."""
    return (
        f"(() => {{ const [a, b] = [{graph_map}.view.size,"
        ' document.querySelector(".node.current").getBoundingClientRect()];'
        "return b.top > a.top && b.bottom < a.bottom && b.left > a.left && b.right < a.right; })()"
    )


def text(browser: Page, selector: str) -> str:
    found = browser.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")
    return str(found)


def count(browser: Page, selector: str) -> int:
    return int(browser.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length"))


def wait_for(browser: Page, expression: str) -> None:
    """Until an expression is true; the browser draws when it is ready."""
    # A function, which is read once: the page's policy lets nothing be read later.
    browser.tab.wait_for_function(f"() => {expression}")
