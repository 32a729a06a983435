"""A page as a file: everything is in it, nothing is fetched, no text in it becomes markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re

from tapml.report.content_policy import served_policy
from tapml.report.html import render, render_sections

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&$title"


def element(page: str, name: str) -> object:
    (text,) = re.findall(rf'<script type="application/json" id="{name}">(.*?)</script>', page)
    return json.loads(text)


def test_the_data_is_in_the_page_and_what_is_late_comes_behind_the_scripts() -> None:
    page = render("t", {"a": HOSTILE}, ["one();", "two();"], late={"texts": [HOSTILE]})
    assert element(page, "data") == {"a": HOSTILE}
    assert element(page, "texts") == [HOSTILE]
    order = [page.index(text) for text in ('id="data"', "one();", "two();", 'id="texts"')]
    assert order == sorted(order)


def test_no_title_and_no_data_becomes_markup() -> None:
    page = render_sections(HOSTILE, HOSTILE, [{"title": HOSTILE, "text": [HOSTILE]}])
    assert "<img" not in page
    assert "$title" in page, "a name is no place to fill in"


def test_numbers_that_json_has_none_for_become_text() -> None:
    page = render("t", [float("nan"), float("inf"), 1.0], ["draw();"])
    assert element(page, "data") == ["nan", "inf", 1.0]


def test_a_browser_may_run_the_pages_own_code_and_fetch_from_its_server_alone() -> None:
    page = render("t", 1, ["run();"], ["p { color: red }"])
    hashes = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in ("run();", "p { color: red }")
    ]
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'"
    )
    assert served_policy(page) == f"{policy}; frame-ancestors 'none'"


def test_a_page_without_scripts_has_none_and_may_run_none() -> None:
    page = render("t", styles=["p {}"], body="<p>all there is</p>")
    assert "<script" not in page
    assert "<noscript" not in page
    assert "script-src 'none'" in page
    assert "<p>all there is</p>" in page
