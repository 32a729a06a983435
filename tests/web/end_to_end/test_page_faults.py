"""Whatever ends a page, its holder gets the reason in time, and the next session works."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tapml.devices.listing import list_devices
from tapml.devices.reach import open_device
from tapml_rpc.session import Session
from tapml_targets.errors import DeviceLostError
from tests.rpc.tracker.trackers import TrackerProcess, wait_for
from tests.web.doorway import Doorway
from tests.web.pages import NAME, DevicePage

# It notices within seconds who gives no sign of life.
TRACKER_OPTIONS = ("--silence", "5")


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
    assert ended.wait(within), "the session did not hear that its page is gone"
    return caught[0]


def assert_works(tracker: TrackerProcess) -> None:
    """The page is lent again and computes."""
    wait_for(lambda: list_devices(tracker.address))
    with open_device(f"tracker:{NAME}") as session:
        buffer = session.allocate(8)
        session.write(buffer, b"12345678")
        assert bytes(session.read(buffer)) == b"12345678"
        # Told with a pong, of which none may have come yet.
        wait_for(lambda: session.load().get("sessions") == 1)


ENDS: dict[str, Callable[[DevicePage], object]] = {
    "its tab is closed": lambda shown: shown.page.close_tab(),
    "another page comes in its place": lambda shown: shown.page.open("about:blank"),
    "it is reloaded": lambda shown: shown.open(),
    "it is stopped": lambda shown: shown.click("#stop"),
    "it crashes": lambda shown: shown.page.crash_tab(),
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


def test_a_machine_that_falls_asleep_is_given_up_and_is_a_device_again_once_it_wakes(
    shown: DevicePage, tracker: TrackerProcess, session: Session
) -> None:
    session.fence()
    shown.page.signal_browser(signal.SIGSTOP)
    try:
        assert_lost(session, within=60.0)
        wait_for(lambda: list_devices(tracker.address) == [])
    finally:
        shown.page.signal_browser(signal.SIGCONT)
    assert_works(tracker)
    shown.wait_ready()


def test_a_way_that_is_cut_ends_the_session_and_the_page_comes_back_by_itself(
    shown: DevicePage, tracker: TrackerProcess, doorway: Doorway, session: Session
) -> None:
    session.fence()
    doorway.cut()
    assert_lost(session)
    shown.wait("#log", "connecting again")
    assert_works(tracker)
    shown.wait_ready()


def test_a_page_that_is_reloaded_in_the_middle_of_an_upload_ends_the_upload(
    shown: DevicePage, tracker: TrackerProcess, doorway: Doorway, session: Session
) -> None:
    size = 512 << 20
    buffer = session.allocate(size)
    with ThreadPoolExecutor(1) as beside:
        before = doorway.passed
        upload = beside.submit(session.write, buffer, bytes(size))
        wait_for(lambda: doorway.passed > before + (8 << 20))
        shown.open()
        with pytest.raises(DeviceLostError):
            upload.result(60.0)
            session.fence()
    assert doorway.passed < before + size, "nothing was left of the upload to be cut off"
    shown.wait_ready()
    assert_works(tracker)


def test_a_gpu_that_is_lost_is_named_and_opened_again(
    shown: DevicePage, tracker: TrackerProcess, session: Session
) -> None:
    session.fence()
    shown.page.crash_gpu()
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
    shown.wait("#memory", "0 bytes")
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
