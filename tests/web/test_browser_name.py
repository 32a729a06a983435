"""The device name ``browser``: a page that is there, or one that is opened, and nothing stays."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tapml.cli.offload import add_parser, session_settings
from tapml.devices.browser import without_opening
from tapml.devices.listing import list_devices
from tapml.devices.reach import open_another, open_device
from tests.rpc.tracker.trackers import TrackerProcess, wait_for
from tests.web.pages import NAME, DevicePage

SECRETS = ("TAPML_TRACKER_KEY", "TAPML_TRACKER_TOKEN")


def children() -> set[str]:
    """The processes that this one has started and not yet seen the end of."""
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        # A thread may end while it is looked at.
        with suppress(OSError):
            found.update((task / "children").read_text().split())
    return found


def test_a_registered_page_is_the_browser(
    shown: DevicePage, tracker: TrackerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAPML_TRACKER", tracker.address)
    said: list[str] = []
    with open_device("browser", say=said.append) as session:
        (listed,) = list_devices(tracker.address)
        assert (listed.name, len(listed.leases)) == (NAME, 1)
        buffer = session.allocate(8)
        session.write(buffer, b"12345678")
        assert bytes(session.read(buffer)) == b"12345678"
    assert said == []


@pytest.fixture
def opener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's own browser: what it is asked to show is written into a file."""
    asked = tmp_path / "asked"
    script = tmp_path / "browser.sh"
    script.write_text(f'#!/bin/sh\necho "$1" > {asked}.part && mv {asked}.part {asked}\n')
    script.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{script} %s")
    monkeypatch.setenv("DISPLAY", ":0")
    for name in SECRETS:
        monkeypatch.delenv(name, raising=False)
    return asked


def test_where_no_page_is_a_tracker_is_started_and_the_users_browser_asked_to_show_it(
    shown: DevicePage, opener: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing listens at port 9 of loopback.
    monkeypatch.setenv("TAPML_TRACKER", "tcp://127.0.0.1:9")
    said: list[str] = []
    done: list[bytes] = []

    def use() -> None:
        with open_device("browser", say=said.append) as session, open_another(session) as other:
            buffer = other.allocate(3)
            other.write(buffer, b"abc")
            done.append(bytes(other.read(buffer)))

    user = threading.Thread(target=use, daemon=True)
    user.start()
    wait_for(opener.exists)
    url = opener.read_text().strip()
    shown.page.open(url)
    user.join(60)
    assert done == [b"abc"]
    assert any(url in line for line in said)
    # The tracker ends with the session: the page is nobody's device any more.
    shown.wait("#state", "waiting")
    shown.open()
    shown.wait_ready()


def test_a_browser_without_a_window_is_started_and_ended(
    shown: DevicePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fixture says whether there is one."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "TAPML_TRACKER", *SECRETS):
        monkeypatch.delenv(name, raising=False)
    said: list[str] = []
    before = children()
    with open_device("browser:headless", say=said.append) as session:
        assert session.device.platform == "webgpu"
        # A tracker and a browser.
        assert len(children() - before) == 2
    (line,) = said
    assert "without a window: http://127.0.0.1:" in line
    assert children() <= before


def test_ctrl_c_while_the_page_is_waited_for_leaves_nothing(tmp_path: Path) -> None:
    script = "from tapml.devices.reach import describe_device as d; d('browser:wait')"
    process = subprocess.Popen(
        [sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert process.stderr is not None
    assert "open http://127.0.0.1:" in process.stderr.readline()
    (tracker,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGINT)
    process.wait(60)
    process.stderr.close()
    wait_for(lambda: not Path(f"/proc/{tracker}").exists())


@pytest.mark.parametrize(
    ("words", "device"),
    [(["--device", "browser"], "browser"), (["--device", "browser", "--no-open"], "browser:wait")],
)
def test_a_session_for_a_browser_moves_to_webgpu(words: list[str], device: str) -> None:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    given, settings = session_settings(parser.parse_args(["offload", *words]))
    assert (settings.target, settings.device) == ("webgpu", device)
    assert given["device"] == device


def test_no_open_asks_for_the_same_browser_and_opens_none() -> None:
    assert without_opening("browser") == "browser:wait"
    assert without_opening("browser:headless") == "browser:headless"
    assert without_opening("opencl:1") == "opencl:1"
