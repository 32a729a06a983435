"""A folder for the browser behind a plain file server, and the page of it in a browser."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tapml.package.browser_folder import MANIFEST
from tests.report.browser import Page
from tests.rpc.tracker.trackers import PATIENCE_SECONDS

# No multiple of a word, and less than most weights: they are cut anywhere.
PART_BYTES = 50_001


class _Quiet(SimpleHTTPRequestHandler):
    """What ``python -m http.server`` answers with, without its lines on standard error."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(root: Path) -> Iterator[int]:
    """A static web server over a folder, on a port of this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(root))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


class RunnerPage:
    """The page of a folder.

    Parameters
    ----------
    page
        The browser's page.
    port
        Where the folders are served.
    """

    def __init__(self, page: Page, port: int) -> None:
        self.page = page
        self.port = port

    def open(self, folder: str, host: str = "localhost") -> str:
        """Load a folder's page; the state it ends in."""
        self.page.open(f"http://{host}:{self.port}/{folder}/")
        return self.wait_state("ready", "failed")

    def show(self, folder: str) -> None:
        """Have a folder's model ready: loaded where another page is open or this one failed."""
        here = self.page.evaluate("location.pathname") == f"/{folder}/"
        if not here or self.text("#state") != "ready":
            assert self.open(folder) == "ready", self.problem

    def wait_state(self, *states: str) -> str:
        """Wait until the page shows one of these states."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (state := self.text("#state")) not in states:
            assert time.monotonic() < deadline, f"{state}: {self.text('body')}"
            time.sleep(0.02)
        return state

    def text(self, selector: str) -> str:
        """What an element holds."""
        return str(self.page.evaluate(f"document.querySelector({selector!r}).textContent"))

    @property
    def problem(self) -> str:
        """The error that the page shows; empty where it shows none."""
        hidden = self.page.evaluate("document.querySelector('#problem').hidden")
        return "" if hidden else f"{self.text('#kind')}: {self.text('#message')}"

    def begin(self, prompt: str, tokens: int) -> None:
        """Fill in the form and send it."""
        self.page.evaluate(
            f"document.querySelector('#prompt').value = {json.dumps(prompt)};"
            f"document.querySelector('#count').value = {tokens};"
            "document.querySelector('#generate').click(); 0"
        )

    def generate(self, prompt: str, tokens: int) -> str:
        """What the page writes after a prompt."""
        self.begin(prompt, tokens)
        self.wait_state("ready")
        return self.text("#written")

    def module(self, script: str) -> Any:
        """What the body of an asynchronous function gives that has ``tapml.js`` as `tapml`."""
        self.page.evaluate(
            "window.answer = null;"
            f"import('./tapml.js').then(async (tapml) => {{ {script} }}).then("
            "(value) => { window.answer = { value }; },"
            "(error) => { window.answer = { error: `${error.kind ?? ''} ${error.stack}` }; })"
        )
        deadline = time.monotonic() + PATIENCE_SECONDS
        # As JSON, which every browser hands out alike.
        while (answer := json.loads(self.page.evaluate("JSON.stringify(window.answer)"))) is None:
            assert time.monotonic() < deadline, "the script does not end"
            time.sleep(0.02)
        assert "error" not in answer, answer["error"]
        return answer.get("value")


def sabotage(folder: Path, script: str) -> None:
    """Have a script run in a folder's worker before the worker's own."""
    worker = folder / "worker.js"
    worker.write_text(script + worker.read_text(encoding="utf-8"), encoding="utf-8")


def edit_manifest(folder: Path, **changes: Any) -> None:
    """Put other values into ``model.json``."""
    path = folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes))


def exchange(folder: Path, name: str, content: bytes) -> None:
    """Replace a file in good order: with its size and hash."""
    (folder / name).write_bytes(content)
    files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
    files[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    edit_manifest(folder, files=files)
