"""Whatever ends a page, its holder is told by name and in time, and the next session works."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tapml_rpc.reach import open_device
from tapml_rpc.session import Session
from tapml_rpc.tracker import list_devices
from tapml_targets.errors import DeviceLostError
from tests.rpc.tracker.trackers import TrackerProcess, wait_for
from tests.web.pages import NAME, DevicePage


def assert_lost(session: Session, within: float = 30.0) -> DeviceLostError:
    """The session ends by itself with a named error."""
    ended = threading.Event()
    caught: list[DeviceLostError] = []

    def use() -> None:
        while not caught:
            try:
                session.fence()
            except DeviceLostError as error:
                caught.append(error)
                ended.set()

    threading.Thread(target=use, daemon=True).start()
    assert ended.wait(within), "nobody told the session that its page is gone"
    return caught[0]


def assert_works(tracker: TrackerProcess) -> None:
    """The page is lent anew and computes."""
    with open_device(f"tracker:{NAME}") as session:
        buffer = session.allocate(8)
        session.write(buffer, b"12345678")
        assert bytes(session.read(buffer)) == b"12345678"
        # Told with a pong, of which none may have come yet.
        wait_for(lambda: session.load().get("sessions") == 1)


ENDS: dict[str, Callable[[DevicePage], object]] = {
    "its tab is closed": lambda shown: shown.page.open("about:blank"),
    "it is reloaded": lambda shown: shown.open(),
    "it is stopped": lambda shown: shown.click("#stop"),
    "it crashes": lambda shown: shown.page.tell("Page.crash"),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_session_ends_with_its_page_and_the_next_page_serves_again(
    shown: DevicePage, tracker: TrackerProcess, session: Session, how: str
) -> None:
    session.write(session.allocate(1 << 20), bytes(1 << 20))
    session.fence()
    ENDS[how](shown)
    assert_lost(session)
    shown.open()
    shown.wait_ready()
    assert_works(tracker)


def test_a_gpu_that_is_lost_is_named_and_opened_anew(
    shown: DevicePage, tracker: TrackerProcess, session: Session
) -> None:
    session.fence()
    shown.page.tell("Browser.crashGpuProcess", browser=True)
    assert "the GPU device was lost" in str(assert_lost(session))
    # Said once the page is not ready any more.
    shown.wait("#log", "the GPU device was lost; connecting again")
    shown.wait_ready()
    assert_works(tracker)


def test_a_page_that_comes_back_holds_nothing_of_the_session_before(
    shown: DevicePage, tracker: TrackerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAPML_TRACKER", tracker.address)
    with open_device(f"tracker:{NAME}") as session:
        held = session.allocate(64 << 20)
        session.fence()
        wait_for(lambda: list_devices(tracker.address)[0].load["device_bytes"] >= held.nbytes)
    wait_for(lambda: list_devices(tracker.address)[0].load["device_bytes"] == 0)
    shown.wait("#memory", "0 B")
    assert_works(tracker)


def test_a_tracker_that_comes_back_finds_the_page_again(
    shown: DevicePage, tracker: TrackerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAPML_TRACKER", tracker.address)
    tracker.kill()
    shown.wait("#state", "waiting")
    with tracker.again() as again:
        shown.wait_ready()
        assert_works(again)
