"""The way from Playwright's driver to a browser, on which no WebSocket of a worker is written out.

Playwright listens to the network of every worker. Chromium then tells it each frame of each
WebSocket there, in Base64 inside JSON, and a device page receives weights in such frames: 256 MB
took 2.7 s without and 24 s with it, and the next call of Playwright's took 27 s more. Nothing can
be asked of it to leave that out, so its command does not reach the browser.

On the way a browser that is silent for long counts as gone, and calls fail that have no end else:
Playwright's limits do not hold for one that is stopped.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.sync.server import ServerConnection, serve

# Longer than any test stops a browser for.
_SILENT_SECONDS = 120.0


@contextmanager
def way_to(browser: str) -> Iterator[str]:
    """An address that stands for the one where a browser listens for a debugger."""

    def pass_on(driver: ServerConnection) -> None:
        with connect(
            browser,
            max_size=None,
            compression=None,
            open_timeout=_SILENT_SECONDS,
            ping_timeout=_SILENT_SECONDS,
        ) as connection:
            workers: set[str] = set()

            def pass_back() -> None:
                with suppress(ConnectionClosed):
                    for message in connection:
                        if '"Target.attachedToTarget"' in str(message):
                            told = json.loads(message).get("params", {})
                            if told.get("targetInfo", {}).get("type") == "worker":
                                workers.add(told["sessionId"])
                        driver.send(message)
                driver.close()

            threading.Thread(target=pass_back, daemon=True).start()
            with suppress(ConnectionClosed):
                for message in driver:
                    command = json.loads(message)
                    session = command.get("sessionId")
                    if command["method"] == "Network.enable" and session in workers:
                        answer = {"id": command["id"], "sessionId": session, "result": {}}
                        driver.send(json.dumps(answer))
                    else:
                        connection.send(message)

    with serve(
        pass_on, "127.0.0.1", 0, max_size=None, compression=None, ping_interval=None
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
