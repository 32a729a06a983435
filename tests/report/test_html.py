"""The report as a page: everything is in it, nothing is fetched, no name in it does harm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tapml.compare.policy import Policy
from tapml.offload.algorithm import OperatorRecord
from tapml.offload.journal import Journal
from tapml.report.data import build_report
from tapml.report.html import render
from tapml.report.layout import lay_out
from tapml_targets.driver import DeviceDescription
from tapml_targets.library import CodeModule, Library
from tapml_targets.limits import Limits
from tests.offload.sessions import FinishedSession
from tests.report.browser import Page, open_browser
from tests.report.plans import HOSTILE, decoder

_FETCHING = {"src", "href", "action", "data", "poster", "srcset", "formaction", "background"}
SUSPECT = "the importer is suspect, not the target (1 of 3 tests)"
_VOID = {"meta", "img", "br", "link", "input", "hr"}


class _Reader(HTMLParser):
    """Elements, attributes, and the text of the data script."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""
        self._in_data = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if tag not in _VOID:
            self.open.append(tag)
        self._in_data = tag == "script" and attributes.get("id") == "report"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"
        self._in_data = False

    def handle_data(self, data: str) -> None:
        if self._in_data:
            self.data += data


def read(page: str) -> _Reader:
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == [], "elements left open"
    return reader


def build(folder: Path, hostile: str = "", layers: int = 2) -> tuple[str, dict[str, Any]]:
    """The page and the data of a small session: one operator moved, one failed."""
    plan = decoder(layers, hostile=hostile)
    library = Library("opencl", (CodeModule("opencl-c", f"// {hostile}".encode()),), {}, {})
    moved, failed = (OperatorRecord(each) for each in plan.operators.values())
    moved.state, moved.library = "moved", library
    moved.replay = {"tests": 3, "passed": 3, "worst_ratio": 1.5, "status": "pass"}
    failed.state, failed.reason, failed.repro = "failed", f"wrong {hostile}", folder / "r"
    failed.replay = {"tests": 3, "passed": 2, "worst_ratio": None, "status": "fail"}
    failed.replay["suspects"] = [f"{SUSPECT} {hostile}".strip()]
    device = DeviceDescription(
        "opencl", 0, f"device {hostile}", f"vendor {hostile}", "cpu", f"1.0 {hostile}", Limits()
    )
    with Journal(folder / "journal") as journal:
        journal.append(
            "phase", name=f"carve {hostile}", seconds=1.5, group="overhead", platform="llvm",
            once=True, detail=hostile,
        )  # fmt: skip
        report = build_report(
            plan=plan,
            model={
                "name": f"model {hostile}", "dtype": "float32", "context_length": 64,
                "weights_hash": "0", "notes": [hostile],
            },
            reference="CPU",
            device=device,
            fingerprint="f",
            policy=Policy(),
            records=[moved, failed],
            final=None,
            journal=journal,
        )  # fmt: skip
    if hostile:
        report["loosened"] = [hostile]
    return render(report, [lay_out(plan, entry) for entry in plan.entries.values()]), report


def test_the_data_inside_is_the_report(tmp_path: Path) -> None:
    page, report = build(tmp_path, HOSTILE)
    assert json.loads(read(page).data) == json.loads(json.dumps(report))


def test_every_operator_and_every_call_site_is_there(tmp_path: Path) -> None:
    page, report = build(tmp_path)
    reader = read(page)
    rows = {a["id"] for _, a in reader.elements if str(a.get("id", "")).startswith("operator-")}
    assert rows == {f"operator-{each['name']}" for each in report["operators"]}
    nodes = [a["data-operator"] for _, a in reader.elements if "data-operator" in a]
    assert len(nodes) == 2 + 5 * 2


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    page, _ = build(tmp_path, HOSTILE)
    reader = read(page)
    assert not [tag for tag, _ in reader.elements if tag == "img"]
    handlers = [name for _, a in reader.elements for name in a if name.startswith("on")]
    assert handlers == []
    assert sum(tag == "script" for tag, _ in reader.elements) == 2
    assert "$title" in page, "a name is no place to fill in"


def test_nothing_is_fetched(tmp_path: Path) -> None:
    for name, value in (
        (name, value)
        for _, attributes in read(build(tmp_path)[0]).elements
        for name, value in attributes.items()
    ):
        inside = name == "href" and (value or "").startswith("#")
        assert inside or name not in _FETCHING, f"{name}={value}"
    page = build(tmp_path)[0]
    assert "url(" not in page
    assert "@import" not in page
    for scheme in ("http://", "https://"):
        assert scheme not in page.replace("http://www.w3.org/2000/svg", "")


def test_an_entry_without_layers_can_be_drawn(tmp_path: Path) -> None:
    page, _ = build(tmp_path, layers=0)
    assert len([1 for _, a in read(page).elements if "data-operator" in a]) == 2


def test_a_loosened_tolerance_stands_before_the_map(tmp_path: Path) -> None:
    page, _ = build(tmp_path, "loose")
    assert page.index("Loosened") < page.index("Migration map")


def test_what_failed_stands_before_the_map_and_its_row_is_open(tmp_path: Path) -> None:
    page, report = build(tmp_path)
    moved, failed = (each["name"] for each in report["operators"])
    head = page[: page.index("Migration map")]
    assert f'<a href="#operator-{failed}">' in head
    assert "wrong" in head[head.index("<h2>Failed") :]
    rows = [attributes for tag, attributes in read(page).elements if tag == "tr"]
    opened = {
        row["id"]: "hidden" not in detail
        for row, detail in pairwise(rows)
        if "operator-" in (row.get("id") or "")
    }
    assert opened == {f"operator-{moved}": False, f"operator-{failed}": True}


def test_who_is_suspect_in_the_targets_place_stands_before_the_map(tmp_path: Path) -> None:
    page, report = build(tmp_path)
    assert [each["suspects"] for each in report["operators"]] == [[], [SUSPECT]]
    assert page.index(SUSPECT) < page.index("Migration map")
    assert page.count(f"<b>{SUSPECT}</b>") == 1, "and beside the reason"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.mark.slow
def test_a_browser_shows_hostile_names_and_runs_none(browser: Page, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(build(tmp_path, HOSTILE)[0], encoding="utf-8")
    browser.open(path)
    assert browser.complaints == []
    assert HOSTILE in browser.evaluate("document.querySelector('h1').textContent")
    assert browser.evaluate("document.images.length") == 0
    assert HOSTILE in browser.evaluate("document.querySelector('tr.operator .name').textContent")
    shown = "document.querySelectorAll('tr.detail:not([hidden])').length"
    failed = browser.evaluate("document.querySelectorAll('tr.operator.failed').length")
    assert browser.evaluate(shown) == failed, "the rows of what failed are open"
    browser.evaluate(
        "document.querySelector('.node:not(.failed)').dispatchEvent(new MouseEvent('click'))"
    )
    assert browser.evaluate(shown) == failed + 1
    assert browser.complaints == []


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390], ids=["desktop", "phone"])
def test_a_real_report_works_in_a_browser(
    browser: Page, finished: FinishedSession, width: int, dark: bool
) -> None:
    browser.requests.clear()
    browser.resize(width, 900, dark=dark)
    browser.open(finished.folder / "report.html")
    assert browser.complaints == []
    assert [each for each in browser.requests if not each.startswith("file://")] == []
    operators = finished.report["operators"]
    assert browser.evaluate("document.querySelectorAll('tr.operator').length") == len(operators)
    sites = sum(each["sites"] for each in operators)
    assert browser.evaluate("document.querySelectorAll('.node.moved').length") == sites
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.evaluate(overflow) <= 0, "the page itself does not scroll sideways"
    browser.evaluate("document.querySelector('.node').dispatchEvent(new MouseEvent('click'))")
    detail = browser.evaluate("document.querySelector('tr.detail:not([hidden])').textContent")
    assert operators[0]["origins"][0]["source"] in detail
    assert browser.picture().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_finished_sessions_page_names_its_numbers(finished: FinishedSession) -> None:
    page = (finished.folder / "report.html").read_text(encoding="utf-8")
    reader = read(page)
    assert json.loads(reader.data) == finished.report
    summary = finished.report["summary"]
    assert f"{summary['moved']} of {summary['operators']}" in page
    assert finished.report["final"]["text"].split(",")[0] in page.replace("&#x27;", "'")
