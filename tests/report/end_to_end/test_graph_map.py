"""The map of a graph of no session in a real browser, on a page made of data alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tapml.report.html import render_sections
from tests.report.browser import Page
from tests.report.graphs import RUN, network_map
from tests.report.shown import count, in_sight, text, wait_for

MAP = "graphMaps[0]"
TITLE_OF = "document.querySelector('.node[data-name={}] title').textContent"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture
def shown(browser: Page, tmp_path: Path) -> Page:
    """The network twice: its run as one box, and node by node."""
    page = render_sections(
        "torch.compile against eager",
        "1 of 20 nodes deviates",
        [
            {"id": "facts", "title": "What was compared", "facts": [("Model", "a network")]},
            {
                "id": "nodes",
                "title": "Graph",
                "maps": [network_map(shortest_run=3), network_map()],
            },
            {
                "id": "settings",
                "title": "Settings",
                "table": (
                    ["setting", "verdict", "ratio"],
                    [["2 ranks", {"status": "fail", "text": "fails"}, 12.3456]],
                ),
                "source": "fn main() { return; } // kernel",
            },
        ],
    )
    path = tmp_path / "page.html"
    path.write_text(page, encoding="utf-8")
    browser.open(path)
    wait_for(browser, f"{MAP}.view.placed")
    return browser


def search(page: Page, words: str) -> None:
    find = "document.getElementById('find-node-1')"
    page.evaluate(f"{{ {find}.value = '{words}'; {find}.dispatchEvent(new Event('input')) }}")


def test_nodes_bands_and_statuses_are_drawn_and_a_run_is_one_box(shown: Page) -> None:
    assert count(shown, ".node") == 20 - len(RUN) + 1
    assert count(shown, "rect.band") == 2
    titles = "[...document.querySelectorAll('text.band')].map(each => each.textContent)"
    assert shown.evaluate(titles) == ["Encoder", "Decoder"]
    statuses = ("pass", "fail", "degraded", "absent")
    assert [count(shown, f".node.{status}") for status in statuses] == [3, 1, 5, 5]
    assert count(shown, ".node .stack") == 1
    assert text(shown, ".legend") == "✓passes!degraded✕fails○not run"
    assert "a network" in text(shown, "#facts")
    assert text(shown, "#settings .chip.fail") == "fails"
    assert "12.3" in text(shown, "#settings td.number")
    assert count(shown, "#settings .source .word") > 0


def test_hovering_a_node_tells_its_value_and_lights_its_edges(shown: Page) -> None:
    assert shown.evaluate(TITLE_OF.format("join")) == "Add join\njoin\nfails\ndeviation: 0.25"
    assert "conv_8: deviation 7e-6" in shown.evaluate(TITLE_OF.format("conv_2"))
    shown.tab.hover(".node[data-name=join]")
    assert (
        shown.evaluate("document.querySelector('.edges.lit').getAttribute('d').match(/M/g).length")
        == 3
    )
    heat = "getComputedStyle(document.querySelector('.node[data-name={}] rect')).fill"
    assert shown.evaluate(heat.format("join")) != shown.evaluate(heat.format("conv_2"))


def test_a_found_node_is_brought_into_view_also_inside_a_run(shown: Page) -> None:
    search(shown, "block_9")
    assert text(shown, ".found") == "1 of 1: block_9"
    assert shown.evaluate(in_sight(MAP))
    search(shown, "conv_5")
    assert text(shown, ".found") == "1 of 1: Conv 2 and 6 more · conv_5 deviation 4e-6"
    assert shown.evaluate(in_sight(MAP))
    search(shown, "add join")
    assert text(shown, ".found") == "1 of 1: Add join · deviation 0.25"


def test_a_node_is_shown_by_its_exact_name_on_the_map_that_has_it(shown: Page) -> None:
    shown.evaluate("[...document.querySelectorAll('.tabs button')][1].click()")
    assert count(shown, ".node") == 20
    shown.evaluate(f"{MAP}.show('block_1')")
    wait_for(shown, "document.querySelector('.node.current')")
    assert count(shown, ".node.lit") == 1
    assert shown.evaluate(in_sight(MAP))
    shown.tab.click(".node[data-name=join]", force=True)
    wait_for(shown, "document.querySelector('.node.current')?.dataset.name === 'join'")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390], ids=["desktop", "phone"])
def test_the_page_fits_every_screen(shown: Page, width: int, dark: bool) -> None:
    shown.resize(width, 900, dark=dark)
    assert shown.evaluate(OVERFLOW) <= 0, "the page itself does not scroll sideways"
    shown.evaluate(f"{MAP}.view.fitWidth()")
    assert shown.evaluate(f"{MAP}.view.strip * {MAP}.view.scale <= {MAP}.view.size.width + 1")
