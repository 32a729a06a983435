"""The report's pages in a real browser: what is shown, what works, what nobody should see."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tapml.session.report_page import render_report
from tapml_targets.library import CodeModule, Library
from tests.offload.sessions import FinishedSession
from tests.report.browser import Page
from tests.report.shown import count, text, wait_for
from tests.session.plans import HOSTILE
from tests.session.reports import early_report, large_report, small_report
from tests.session.shown import IN_SIGHT, show, visit

OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def test_names_that_mean_harm_are_shown_and_do_none(browser: Page, tmp_path: Path) -> None:
    report = small_report(tmp_path, HOSTILE)
    show(browser, tmp_path, report)
    for operator in report["operators"]:
        visit(browser, f"operator-{quote(operator['name'])}")
        assert text(browser, "#page h1") == operator["name"]
        assert HOSTILE in text(browser, "#page")
    visit(browser, "")
    assert HOSTILE in text(browser, ".operators .name")
    assert HOSTILE in text(browser, "#overview")
    assert count(browser, "img") == 0


def test_the_first_page_says_how_it_stands_and_what_to_do(browser: Page, tmp_path: Path) -> None:
    report = small_report(tmp_path)
    report["loosened"] = ["join: up to 200"]
    show(browser, tmp_path, report)
    moved, failed = (each["name"] for each in report["operators"])
    assert "1 of 2 operators failed" in text(browser, ".outcome")
    first = text(browser, "#next")
    assert f"tapml kernel new {tmp_path} {failed}" in first
    assert "wrong" in first
    order = "[...document.querySelectorAll('#overview > *')].map(each => each.id)"
    places = browser.evaluate(order)
    assert places.index("loosened") < places.index("next") < places.index("map")
    assert places.index("suspect") < places.index("map")
    assert "bisect" in text(browser, "#facts")
    assert "2 · at most 3 expected ✓" in text(browser, "#facts")
    assert "1.02 KB would do" in text(browser, "#facts")
    assert "1 made again" in text(browser, "#facts")
    assert "2 ×" in text(browser, "#slow")
    assert moved in text(browser, "#slow")
    assert "as long, 1 operator without a time left out" in text(browser, "#slow")


def test_a_finished_port_is_tried_and_packaged_next(browser: Page, tmp_path: Path) -> None:
    report = small_report(tmp_path)
    report["operators"][1]["state"] = "moved"
    report["outcome"] = {"status": "pass", "text": "all are on the target"}
    report["summary"]["moved"] = 2
    show(browser, tmp_path, report)
    assert f"tapml package {tmp_path}" in text(browser, "#next")
    assert f"tapml run {tmp_path}" in text(browser, "#next")


def test_what_stands_from_earlier_runs_is_shown(browser: Page, tmp_path: Path) -> None:
    report = small_report(tmp_path)
    report["strategy"]["from_journal"] = 41
    show(browser, tmp_path, report)
    assert "41 reused from earlier runs" in text(browser, "#facts")


def test_a_long_name_takes_two_lines_before_the_last_column_leaves_the_screen(
    browser: Page, tmp_path: Path
) -> None:
    report = small_report(tmp_path)
    report["operators"][0]["name"] = "fused_" + "_".join(["transpose_reshape"] * 4)
    show(browser, tmp_path, report)
    table = "document.querySelector('.operators').parentElement"
    assert browser.evaluate(f"{table}.scrollWidth - {table}.clientWidth") <= 0


def test_an_operators_page_has_everything_that_is_known(browser: Page, tmp_path: Path) -> None:
    report = small_report(tmp_path)
    show(browser, tmp_path, report)
    visit(browser, "operator-norm")
    page = text(browser, "#page")
    for known in (
        "moved", "kernel written by hand", "/kernels/", "the policy", "layers.0.norm", "norm.py:7",
        "worst error at out[3]", "2 × as long", "4 calls", "Changed: the kernel", "in0", "[4]",
        "__kernel void norm", "1 above the limit",
    ):  # fmt: skip
        assert known in page, known
    assert count(browser, ".histogram rect.over") == 1
    assert count(browser, ".errors rect.beyond") == 1
    assert count(browser, ".source .comment") > 0
    assert count(browser, ".history li") == 2
    visit(browser, "operator-join")
    assert "wrong" in text(browser, "#page .card.failed")


def test_a_binary_kernel_is_named_in_place_of_its_source(browser: Page, tmp_path: Path) -> None:
    library = Library(
        "cpu", (CodeModule("elf-shared-object", b"\x7fELF" * 300, kind="machine"),), {}, {}
    )
    report = small_report(tmp_path, library=library)
    report["operators"][0]["written"] = ""
    show(browser, tmp_path, report)
    visit(browser, "operator-norm")
    assert "kernel compiled by TVM" in text(browser, "#page header")
    kernel = text(browser, "#page .source p")
    assert kernel == "elf-shared-object, 1,200 bytes: a binary, which has no text"


def test_pages_have_links_keys_and_remember_their_place(browser: Page, tmp_path: Path) -> None:
    show(browser, tmp_path, small_report(tmp_path))
    browser.resize(1280, 300)
    browser.evaluate("scrollTo({ top: 400, behavior: 'instant' })")
    visit(browser, "operator-norm")
    assert browser.evaluate("scrollY") == 0
    browser.press("j")
    wait_for(browser, "document.querySelector('#page h1').textContent === 'join'")
    browser.press("k")
    wait_for(browser, "document.querySelector('#page h1').textContent === 'norm'")
    browser.press("Escape")
    wait_for(browser, "!document.getElementById('overview').hidden && scrollY === 400")
    visit(browser, "operator-nobody")
    assert "no operator" in text(browser, "#page")


def test_a_link_to_an_operator_opens_its_page(browser: Page, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(render_report(small_report(tmp_path)), encoding="utf-8")
    browser.open(path, "#operator-norm")
    assert "__kernel void norm" in text(browser, "#page .source")
    assert browser.evaluate("document.getElementById('overview').hidden")
    browser.evaluate("document.querySelector('#page button').click()")
    wait_for(browser, "document.querySelector('.node.current')?.dataset.label === 'norm'")
    assert browser.evaluate("map.view.scale") > 0.5, "a map drawn out of sight has its size now"
    assert browser.evaluate(IN_SIGHT)


def test_the_table_is_sorted_and_filtered(browser: Page, tmp_path: Path) -> None:
    show(browser, tmp_path, large_report(tmp_path, operators=40, layers=2))
    browser.evaluate("session.operators[7].worst_ratio = 9; session.operators[3].state = 'failed'")
    browser.evaluate("drawOverview()")
    first = "document.querySelector('.operators tbody tr').dataset.operator"
    browser.evaluate("document.querySelector('th[data-column=ratio] button').click()")
    assert browser.evaluate(first) == "operator_7"
    assert count(browser, "th[aria-sort=descending]") == 1
    browser.evaluate("document.querySelector('.tools .toggle.failed').click()")
    assert count(browser, ".operators tbody tr") == 1
    assert browser.evaluate(first) == "operator_3"
    browser.evaluate("document.querySelector('.tools .toggle.failed').click()")
    choose = (
        "select.value = 'error above half its limit'; select.dispatchEvent(new Event('change'))"
    )
    browser.evaluate(
        f"{{ const select = document.querySelector('[aria-label=numbers]'); {choose} }}"
    )
    assert browser.evaluate(first) == "operator_7"
    assert count(browser, ".operators tbody tr") == 1
    choose = choose.replace("error above half its limit", "slower than the reference")
    browser.evaluate(
        f"{{ const select = document.querySelector('[aria-label=numbers]'); {choose} }}"
    )
    assert count(browser, ".operators tbody tr") == 40
    typed = "find.value = 'OR_3'; find.dispatchEvent(new Event('input'))"
    browser.evaluate(f"{{ const find = document.getElementById('find-operator'); {typed} }}")
    assert count(browser, ".operators tbody tr") == 11


def test_a_device_that_is_too_small_is_no_case_for_another_kernel(
    browser: Page, tmp_path: Path
) -> None:
    report = small_report(tmp_path)
    failed = next(each for each in report["operators"] if each["state"] == "failed")
    lack = {
        "where": "parameter 'x' of operator 'take'", "limit": "max_buffer_bytes", "need": "8192",
        "has": "4096", "symbols": "n = 64", "device": True,
    }  # fmt: skip
    failed["lacks"] = [lack]
    show(browser, tmp_path, report)
    advice = text(browser, "#next")
    assert "max_buffer_bytes is 4096, needed are 8192 at n = 64" in advice
    assert "tapml devices" in advice
    assert f"--keep-on-source {failed['name']}" in advice
    assert "shorter context (--context)" in advice
    assert "tapml kernel" not in advice
    failed["lacks"] = [lack | {"device": False}]
    show(browser, tmp_path, report)
    assert "tapml kernel new" in text(browser, "#next"), "a kernel may keep within this one"


def test_states_are_told_apart_without_colour(browser: Page, tmp_path: Path) -> None:
    report = large_report(tmp_path, operators=5, layers=1)
    states = ("moved", "failed", "kept", "waiting", "validated")
    for operator, state in zip(report["operators"], states, strict=True):
        operator |= {"state": state, "written": ""}
    show(browser, tmp_path, report)
    glyphs = {state: text(browser, f".node.{state} .glyph") for state in states}
    assert len(set(glyphs.values())) == len(states)
    for state in states:
        assert glyphs[state] in text(browser, f".operators tr.{state} .chip")


def test_five_hundred_operators_open_and_answer_at_once(browser: Page, tmp_path: Path) -> None:
    show(browser, tmp_path, large_report(tmp_path))
    assert count(browser, ".operators tbody tr") == 60
    assert "500 operators" in text(browser, "#operators")
    started = "const start = performance.now()"
    drawn = browser.evaluate(
        f"(() => {{ {started}; location.hash = 'operator-operator_499'; route();"
        "document.body.offsetHeight; return performance.now() - start; })()"
    )
    assert "operator_499" in text(browser, "#page h1")
    assert drawn < 1500, f"{drawn} ms to draw an operator's page"


@pytest.mark.parametrize("made", [early_report, lambda _: {}], ids=["early", "empty"])
def test_reports_that_hold_less_are_drawn(browser: Page, tmp_path: Path, made: Any) -> None:
    report = made(tmp_path)
    show(browser, tmp_path, report)
    for operator in report.get("operators", []):
        visit(browser, f"operator-{operator['name']}")
        assert text(browser, "#page h1") == operator["name"]
    assert count(browser, "#map") == 0


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390], ids=["desktop", "phone"])
def test_a_real_report_fits_every_screen(
    browser: Page, finished: FinishedSession, width: int, dark: bool
) -> None:
    browser.resize(width, 900, dark=dark)
    browser.open(finished.folder / "report.html")
    operators = finished.report["operators"]
    assert count(browser, ".operators tbody tr") == len(operators)
    assert browser.evaluate(OVERFLOW) <= 0, "the page itself does not scroll sideways"
    assert browser.picture().startswith(b"\x89PNG")
    for operator in operators[:6]:
        visit(browser, f"operator-{operator['name']}")
        assert browser.evaluate(OVERFLOW) <= 0, operator["name"]
        assert operator["origins"][0]["source"] in text(browser, "#origins")
        assert count(browser, ".histogram svg") == 1
        assert count(browser, ".errors svg") == 1
        assert count(browser, "#timing .line") >= 2
        assert browser.evaluate(_CONTRAST) == [], "text that is hard to read"
    visit(browser, "")
    assert browser.evaluate(_CONTRAST) == [], "text that is hard to read"


_CONTRAST = """
(() => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  const paint = colours => {
    pen.clearRect(0, 0, 1, 1);
    for (const colour of colours) { pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); }
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = rgb => rgb.map(part => part / 255)
    .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
  const bad = new Set();
  for (const each of document.querySelectorAll("main *")) {
    const own = [...each.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (!own || !each.offsetParent || each.closest("svg")) continue;
    const behind = [];
    for (let at = each; at; at = at.parentElement) {
      behind.unshift(getComputedStyle(at).backgroundColor);
    }
    const back = paint(behind);
    const [one, two] = [light(back), light(paint([...behind, getComputedStyle(each).color]))];
    const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    const words = each.textContent.slice(0, 30);
    if (ratio < 4.5) bad.add(`${each.className} ${words} ${ratio.toFixed(2)}`);
  }
  return [...bad].slice(0, 8);
})()
"""
"""Texts whose colour is less than 4.5 times as light or dark as what is behind them (WCAG AA)."""
