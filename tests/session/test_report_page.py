"""The report as a file: everything is in it, nothing is fetched, no name in it does harm."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tapml.report.html import SCRIPTS, STYLES
from tapml.session.report_page import OWN_SCRIPTS, OWN_STYLES, render_report
from tests.offload.sessions import FinishedSession
from tests.session.plans import HOSTILE
from tests.session.reports import KERNEL, early_report, large_report, small_report

_FETCHING = {"src", "href", "action", "data", "poster", "srcset", "formaction", "background"}
_VOID = {"meta", "img", "br", "link", "input", "hr"}
_CODE = len(SCRIPTS) + len(OWN_SCRIPTS)


class _Reader(HTMLParser):
    """Elements, attributes, and the text of the data scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.data = {"data": "", "texts": ""}
        self._in = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if tag not in _VOID:
            self.open.append(tag)
        self._in = (attributes.get("id") or "") if tag == "script" else ""

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in:
            self.data[self._in] += data


def read(page: str) -> _Reader:
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == [], "elements left open"
    return reader


def held(page: str) -> dict[str, Any]:
    """The report that a page holds, its sources back in their operators."""
    reader = read(page)
    report: dict[str, Any] = json.loads(reader.data["data"])
    texts = json.loads(reader.data["texts"])
    report["operators"] = [each | texts[each["name"]] for each in report["operators"]]
    return report


@pytest.mark.parametrize("hostile", ["", HOSTILE], ids=["plain", "hostile"])
def test_the_data_inside_is_the_report(tmp_path: Path, hostile: str) -> None:
    report = small_report(tmp_path, hostile)
    assert held(render_report(report)) == json.loads(json.dumps(report))


def test_hostile_names_stay_data(tmp_path: Path) -> None:
    page = render_report(small_report(tmp_path, HOSTILE))
    reader = read(page)
    assert not [tag for tag, _ in reader.elements if tag == "img"]
    assert [name for _, a in reader.elements for name in a if name.startswith("on")] == []
    assert sum(tag == "script" for tag, _ in reader.elements) == _CODE + 2
    assert "$title" in page, "a name is no place to fill in"


def test_nothing_is_fetched(tmp_path: Path) -> None:
    page = render_report(small_report(tmp_path))
    attributes = {name for _, each in read(page).elements for name in each}
    assert not attributes & _FETCHING
    assert "url(" not in page
    assert "@import" not in page
    assert re.findall(r"https?://[^\"' ]+", page) == ["http://www.w3.org/2000/svg"]


def test_a_browser_may_run_these_scripts_and_no_others(tmp_path: Path) -> None:
    page = render_report(small_report(tmp_path))
    (policy,) = [a["content"] or "" for _, a in read(page).elements if "http-equiv" in a]
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    code = re.findall(r"<(?:script|style)>(.*?)</(?:script|style)>", page, re.DOTALL)
    hashes = {base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in code}
    assert hashes == allowed
    assert len(code) == _CODE + len(STYLES) + len(OWN_STYLES)
    assert "unsafe" not in policy
    assert "eval(" not in page
    assert "innerHTML" not in page


def test_sources_stand_behind_the_scripts_that_draw_the_first_page(tmp_path: Path) -> None:
    page = render_report(small_report(tmp_path))
    assert page.count(KERNEL) == 1
    assert page.index(KERNEL) > page.rindex("<script>")


def test_only_a_served_page_asks_for_news(tmp_path: Path) -> None:
    report = small_report(tmp_path)
    assert '<html lang="en">' in render_report(report)
    assert '<html lang="en" data-live>' in render_report(report, live=True)


def test_without_scripts_the_outcome_is_read(tmp_path: Path) -> None:
    report = small_report(tmp_path)
    assert report["outcome"]["text"] in render_report(report)


def test_an_early_report_and_an_empty_one_can_be_drawn(tmp_path: Path) -> None:
    report = early_report(tmp_path)
    assert [each["name"] for each in held(render_report(report))["operators"]] == [
        each["name"] for each in report["operators"]
    ]
    assert held(render_report({})) == {"operators": []}


def test_a_session_of_five_hundred_operators_can_be_sent_by_mail(tmp_path: Path) -> None:
    report = large_report(tmp_path)
    page = render_report(report)
    written = sum(len(each["source"]) for each in report["operators"])
    assert len(page) < written + (3 << 20)


def test_a_finished_sessions_page_holds_its_report(finished: FinishedSession) -> None:
    page = (finished.folder / "report.html").read_text(encoding="utf-8")
    assert held(page) == finished.report
