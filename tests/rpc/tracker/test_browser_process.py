"""A tracker's own browsers: which is taken, and that none outlives who started it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tapml.devices.browser_process import (
    AUTOMATIC,
    START_SECONDS,
    BrowserKeeper,
    BrowserProcess,
    find_browser,
)
from tapml.devices.listing import list_devices
from tapml_rpc.security.private_files import new_folder
from tapml_targets.errors import InputError, SetupError
from tests.report.browser import need_browser
from tests.rpc.tracker.trackers import TrackerProcess, wait_for


def program(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text("#!/bin/sh\nexec sleep 1000\n", "ascii")
    path.chmod(0o755)
    return path


def test_a_browser_is_found_by_its_kind_its_name_or_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=r"no browser here.*chromium"):
        find_browser()
    firefox = program(tmp_path, "firefox-esr")
    assert (find_browser().kind, find_browser().path) == ("firefox", firefox)
    chrome = program(tmp_path, "google-chrome")
    for wanted, path in (
        (AUTOMATIC, chrome),
        ("chromium", chrome),
        ("firefox", firefox),
        ("google-chrome", chrome),
        (str(firefox), firefox),
    ):
        assert find_browser(wanted).path == path
    with pytest.raises(InputError, match="'netscape' is not a program"):
        find_browser("netscape")


def test_a_token_in_the_page_s_address_stands_on_no_command_line(tmp_path: Path) -> None:
    browser = find_browser(str(program(tmp_path, "chromium")))
    with BrowserProcess("http://127.0.0.1:1/#token=</script>secret", browser) as process:
        (door,) = process.profile.glob("*.html")
        assert "secret" in door.read_text() and "</script>secret" not in door.read_text()
        assert process.profile.stat().st_mode & 0o777 == 0o700
        assert not any("secret" in str(word) for word in process.process.args)  # type: ignore[union-attr]
    assert not process.profile.exists()


def test_a_browser_ends_with_who_started_it_however_that_ends(tmp_path: Path) -> None:
    """Nothing of it is left: no process and no folder."""
    script = (
        "import sys, time\n"
        "from tapml.devices.browser_process import BrowserProcess, find_browser\n"
        "process = BrowserProcess('http://127.0.0.1:1/', find_browser(sys.argv[1]))\n"
        "print(process.process.pid, process.profile, flush=True)\n"
        "time.sleep(1000)\n"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", script, str(program(tmp_path, "chromium"))],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdout is not None
    pid, _, profile = starter.stdout.readline().strip().partition(" ")
    assert Path(profile).is_dir()
    starter.kill()
    starter.communicate()
    wait_for(lambda: not Path(profile).exists() and not _runs(int(pid)))


def test_a_browser_for_which_there_is_no_room_ends_no_tracker_and_is_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    browser = find_browser(str(program(tmp_path, "chromium")))
    said: list[str] = []
    with monkeypatch.context() as patched, pytest.raises(SetupError, match="set TMPDIR"):
        patched.setattr("tempfile.gettempdir", full)
        new_folder("tapml-")
    with monkeypatch.context() as patched:
        patched.setattr("tempfile.mkdtemp", full)
        keeper = BrowserKeeper("http://127.0.0.1:1/", "tab", browser, 15, said.append)

    def runs() -> bool:
        return keeper.process is not None

    assert not runs() and "No space left" in said[0]
    for _ in range(START_SECONDS):
        keeper.tick(registered=False)
    assert runs()
    keeper.close()
    for _ in range(START_SECONDS):
        keeper.tick(registered=False)
    assert not runs()
    keeper.wait()


def test_what_a_browser_prints_is_kept_up_to_a_bound_and_its_last_words_with_it(
    tmp_path: Path,
) -> None:
    path = program(tmp_path, "chromium")
    path.write_text("#!/bin/sh\nseq 1 200000 >&2\necho the last words >&2\n", "ascii")
    with BrowserProcess("http://127.0.0.1:1/", find_browser(str(path))) as process:
        process.process.wait(60)
        wait_for(lambda: process.said().endswith("\n200000\nthe last words"))
        assert len(process.said()) <= 2000
        assert sum(file.stat().st_size for file in process.profile.rglob("*")) < 100_000


def test_a_browser_that_takes_its_time_to_end_keeps_no_tracker_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    close = BrowserProcess.close

    def takes_its_time(process: BrowserProcess) -> None:
        may_end.wait(60)
        close(process)

    monkeypatch.setattr(BrowserProcess, "close", takes_its_time)
    browser = find_browser(str(program(tmp_path, "chromium")))
    said: list[str] = []
    keeper = BrowserKeeper("http://127.0.0.1:1/", "tab", browser, 1, said.append)
    old = keeper.process
    assert old is not None
    keeper.tick(registered=True)
    keeper.tick(registered=False)
    assert "it is restarted" in said[0] and keeper.process not in (old, None)
    assert old.profile.exists(), "it has not ended yet"
    keeper.close()
    may_end.set()
    keeper.wait()
    assert not old.profile.exists()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # Nobody may have collected it: a dead process is a name without a command line.
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes()) if sys.platform == "linux" else True
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_tracker_starts_a_browser_again_that_has_died_and_ends_it_with_itself() -> None:
    need_browser()
    with TrackerProcess("tcp://127.0.0.1:0", "--browser", "chromium", in_order=True) as tracker:
        assert tracker.line["browsers"] == ["chromium"]

        def life() -> float | None:
            found = [d for d in list_devices(tracker.address) if d.name == "chromium"]
            return found[0].registered_seconds if found else None

        wait_for(lambda: life() is not None)
        (child,) = children(tracker.process.pid)
        os.killpg(child, signal.SIGKILL)
        wait_for(lambda: life() is None)
        wait_for(lambda: life() is not None)
        (again,) = children(tracker.process.pid)
        assert again != child
    assert not _runs(again)
    assert b"ended by itself" in tracker.errors and b"restarted" in tracker.errors


def children(pid: int) -> list[int]:
    """The processes that one has started, those that have ended apart."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found if _runs(int(child))]


def test_a_browser_wants_the_page_of_this_machine() -> None:
    command = [
        sys.executable, "-m", "tapml.cli.main", "rpc", "tracker", "--bind", "tcp://127.0.0.1:0",
        "--browser", sys.executable, "--websocket", "wss://127.0.0.1:0",
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and "--websocket ws://127.0.0.1" in ended.stderr
