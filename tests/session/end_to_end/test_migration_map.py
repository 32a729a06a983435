"""The map of a migration in a real browser: found, zoomed and moved by mouse, keys and fingers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.report.browser import Page
from tests.report.shown import count, text, wait_for
from tests.session.reports import large_report, small_report
from tests.session.shown import IN_SIGHT, show


def test_the_map_is_searched_zoomed_and_leads_to_operators(browser: Page, tmp_path: Path) -> None:
    show(browser, tmp_path, large_report(tmp_path))
    assert count(browser, ".node") == 64 * 31
    wait_for(browser, "document.querySelector('.canvas g').hasAttribute('transform')")
    scale = "map.view.scale"
    whole = browser.evaluate(scale)
    assert browser.evaluate("map.view.strip * map.view.scale <= map.view.size.width + 1")
    browser.evaluate("document.querySelector('.buttons button').click()")
    assert browser.evaluate(scale) > whole
    browser.evaluate("document.querySelector('.canvas').focus({ preventScroll: true })")
    browser.press("0")
    assert browser.evaluate("map.view.height * map.view.scale <= map.view.size.height + 1")
    assert browser.evaluate("document.querySelector('.canvas').classList.contains('far')")
    typed = "find.value = 'layers.33/7'; find.dispatchEvent(new Event('input'))"
    browser.evaluate(f"{{ const find = document.getElementById('find-site'); {typed} }}")
    assert count(browser, ".node.lit") == 1
    assert "1 of 1" in text(browser, ".found")
    assert browser.evaluate(IN_SIGHT), "what is found is in sight"
    browser.evaluate("document.querySelector('.canvas').scrollIntoView({ behavior: 'instant' })")
    x, y = browser.evaluate(
        "(() => { const box = document.querySelector('.node.current').getBoundingClientRect();"
        "return [box.left + box.width / 2, box.top + box.height / 2]; })()"
    )
    browser.tab.mouse.click(x, y)
    name = browser.evaluate("document.querySelector('.node.current').dataset.label")
    wait_for(browser, f"document.querySelector('#page h1')?.textContent === {json.dumps(name)}")


def test_what_was_found_on_the_map_stays_in_sight_while_it_is_zoomed(
    browser: Page, tmp_path: Path
) -> None:
    show(browser, tmp_path, large_report(tmp_path))
    wait_for(browser, "document.querySelector('.canvas g').hasAttribute('transform')")
    for site in ("layers.33/7", "layers.2/0", "layers.63/29"):
        typed = f"find.value = '{site}'; find.dispatchEvent(new Event('input'))"
        browser.evaluate(f"{{ const find = document.getElementById('find-site'); {typed} }}")
        browser.evaluate("document.querySelector('.canvas').focus({ preventScroll: true })")
        before = browser.evaluate("map.view.scale")
        for key in "+++":
            browser.press(key)
            assert browser.evaluate(IN_SIGHT), (site, key)
        assert browser.evaluate("map.view.scale") > before
        browser.evaluate("document.querySelector('.buttons button:nth-child(2)').click()")
        assert browser.evaluate(IN_SIGHT), (site, "button")


def test_the_map_is_dragged_by_hand_and_not_clicked_then(browser: Page, tmp_path: Path) -> None:
    show(browser, tmp_path, small_report(tmp_path))
    wait_for(browser, "document.querySelector('.canvas g').hasAttribute('transform')")
    browser.evaluate("document.querySelector('.canvas').scrollIntoView({ behavior: 'instant' })")
    before = browser.evaluate("map.view.left")
    x, y = browser.evaluate(
        "(() => { const box = document.querySelector('.node').getBoundingClientRect();"
        "return [box.left + 20, box.top + 10]; })()"
    )
    mouse = browser.tab.mouse
    mouse.move(x, y)
    mouse.down()
    mouse.move(x + 60, y, steps=2)
    mouse.up()
    assert browser.evaluate("map.view.left") == before + 60
    assert browser.evaluate("location.hash") == ""


def test_fingers_and_wheel_zoom_where_they_are(browser: Page, tmp_path: Path) -> None:
    browser.resize(390, 844)
    browser.send("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
    show(browser, tmp_path, small_report(tmp_path))
    wait_for(browser, "document.querySelector('.canvas g').hasAttribute('transform')")
    browser.evaluate("document.querySelector('.canvas').scrollIntoView({ behavior: 'instant' })")
    left, top = browser.evaluate("[map.view.size.left, map.view.size.top]")
    before = browser.evaluate("map.view.scale")
    x, y = left + 180, top + 100

    def touch(kind: str, apart: int) -> None:
        points = [{"x": x - apart, "y": y, "id": 0}, {"x": x + apart, "y": y, "id": 1}]
        browser.send("Input.dispatchTouchEvent", type=kind, touchPoints=points if apart else [])

    touch("touchStart", 40)
    for apart in (50, 60, 70, 80):
        touch("touchMove", apart)
    touch("touchEnd", 0)
    wait_for(browser, f"Math.abs(map.view.scale / {before} - 2) < 0.05")
    under = "(180 - map.view.left) / map.view.scale"
    place = browser.evaluate(under)
    browser.send("Emulation.setTouchEmulationEnabled", enabled=False)
    browser.tab.mouse.move(x, y)
    browser.tab.keyboard.down("Control")
    browser.tab.mouse.wheel(0, -60)
    browser.tab.keyboard.up("Control")
    wait_for(browser, f"map.view.scale > {before} * 2.2")
    assert browser.evaluate(under) == pytest.approx(place, abs=0.5)


def test_the_map_of_an_earlier_report_is_drawn(browser: Page, tmp_path: Path) -> None:
    report = small_report(tmp_path)
    (entry,) = report["maps"]
    report["maps"] = [entry | {"entry": entry.pop("name"), "operators": entry.pop("labels")}]
    show(browser, tmp_path, report)
    assert count(browser, ".node") == len(entry["nodes"])
    names = "[...new Set([...document.querySelectorAll('.node')].map(each => each.dataset.label))]"
    assert browser.evaluate(names) == ["norm", "join"]
