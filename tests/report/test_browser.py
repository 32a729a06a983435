"""How tests come by a browser: without Playwright they say so, and no worker's frames pass."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect
from websockets.sync.server import ServerConnection, serve

from tests.report.browser import need_browser, open_browser
from tests.report.driver_way import way_to


def test_without_playwright_a_test_is_skipped_or_fails_where_it_must_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_browser()
    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    monkeypatch.delenv("TAPML_REQUIRE_DEVICES", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no Playwright here: pip install"):
        open_browser(tmp_path).__enter__()
    monkeypatch.setenv("TAPML_REQUIRE_DEVICES", "1")
    with pytest.raises(pytest.fail.Exception, match="no Playwright here: pip install"):
        open_browser(tmp_path).__enter__()


def test_the_network_of_a_worker_is_not_listened_to_and_all_else_passes() -> None:
    """A browser that says it has a page and a worker, and answers with what it heard."""

    def browser(driver: ServerConnection) -> None:
        for kind in ("page", "worker"):
            told = {"sessionId": f"s-{kind}", "targetInfo": {"type": kind}}
            driver.send(json.dumps({"method": "Target.attachedToTarget", "params": told}))
        for message in driver:
            command = json.loads(message)
            driver.send(json.dumps({"id": command["id"], "result": {"heard": command["method"]}}))

    with serve(browser, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        with way_to(address) as way, connect(way) as driver:

            def answer(number: int, method: str, session: str) -> Any:
                command = {"id": number, "method": method, "sessionId": session}
                driver.send(json.dumps(command))
                told = json.loads(driver.recv(timeout=60))
                assert told["id"] == number
                return told["result"]

            for kind in ("page", "worker"):
                told = json.loads(driver.recv(timeout=60))["params"]
                assert told["targetInfo"]["type"] == kind
            assert answer(1, "Network.enable", "s-page") == {"heard": "Network.enable"}
            assert answer(2, "Network.enable", "s-worker") == {}
            assert answer(3, "Runtime.enable", "s-worker") == {"heard": "Runtime.enable"}
