"""The served page in a real browser follows a session and leaves its reader where he is."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tapml.runs.events import PhaseStarted, ignore
from tapml.runs.live_file import LiveFile
from tapml.runs.lock import LOCK, RunLock
from tapml.session.events import OperatorChanged, OperatorsKnown
from tapml.session.report_server import ReportServer
from tapml.session.run_state import RunState
from tests.report.browser import Page, open_browser
from tests.report.shown import count, text, wait_for
from tests.session.reports import small_report
from tests.session.shown import visit

_SEEN = "document.querySelector('#operators').getBoundingClientRect().top"


@contextmanager
def watching(folder: Path) -> Iterator[Page]:
    """A browser on the served page of a session."""
    with ReportServer(folder) as server, open_browser(folder / "browser") as page:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        page.open(server.url)
        yield page
        server.shutdown()
        thread.join()
        assert page.complaints == []
        assert {each for each in page.requests if not each.startswith(server.url)} == set()


def write(folder: Path, report: dict[str, Any]) -> None:
    (folder / "report.json").write_text(json.dumps(report), encoding="utf-8")


def test_a_run_is_followed_without_losing_ones_place(tmp_path: Path) -> None:
    report = small_report(tmp_path)
    write(tmp_path, report)
    with RunLock(tmp_path / LOCK).hold(), LiveFile(tmp_path, RunState(), ignore) as live:
        live(OperatorsKnown(("norm", "join")))
        live(PhaseStarted("move operators", total=2))
        with watching(tmp_path) as page:
            wait_for(page, "!document.getElementById('live').hidden")
            assert "move operators" in text(page, "#live")
            wait_for(page, "document.querySelector('#outcome.running')")
            assert count(page, ".node.waiting") == count(page, ".node")
            page.resize(1280, 300)
            page.evaluate("jump(500); document.querySelector('.node').marked = true")
            seen = page.evaluate(_SEEN)
            live(OperatorChanged("norm", "replaying", 0, 2, {"tests": 3}))
            wait_for(page, "document.querySelector('.node.running')")
            assert text(page, ".operators tr.running .name") == "norm"
            live(OperatorChanged("norm", "failed", 1, 2, {"reason": "off by a mile"}))
            wait_for(page, "document.querySelector('.node.failed')")
            assert page.evaluate("document.querySelector('.node').marked"), "it was not drawn again"
            assert page.evaluate(_SEEN) == pytest.approx(seen, abs=1)
            visit(page, "operator-norm")
            wait_for(page, "document.querySelector('#page').textContent.includes('off by a mile')")
            report["operators"][0]["class"] = "classified again"
            write(tmp_path, report)
            wait_for(page, "document.querySelector('#page').textContent.includes('fied again')")


def test_when_a_run_ends_its_report_is_shown(tmp_path: Path) -> None:
    report = small_report(tmp_path)
    write(tmp_path, report)
    with RunLock(tmp_path / LOCK).hold(), LiveFile(tmp_path, RunState(), ignore) as live:
        live(PhaseStarted("move operators", total=2))
        with watching(tmp_path) as page:
            wait_for(page, "document.querySelector('#outcome.running')")
            report["outcome"] = {"status": "pass", "text": "all are there"}
            write(tmp_path, report)
            live.__exit__(None, None, None)
            wait_for(page, "document.querySelector('#outcome.pass')")
            assert "not running" in text(page, "#live")
