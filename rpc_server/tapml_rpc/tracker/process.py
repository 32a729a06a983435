"""The tracker process: ``python -m tapml_rpc.tracker.process``, or ``tapml rpc tracker``.

The addresses are printed as one JSON line on standard output; everything else goes to standard
error.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tapml_rpc.security.curve import ServerCurve
from tapml_rpc.security.effects import check_effects
from tapml_rpc.tracker.browser_keeper import BrowserKeeper
from tapml_rpc.tracker.browser_process import Browser, find_browser
from tapml_rpc.tracker.loop import TrackerLoop
from tapml_rpc.tracker.options import TrackerOptions, add_arguments, options_from
from tapml_rpc.tracker.page_address import how_to_open, page_url
from tapml_rpc.tracker.records import VERSION
from tapml_rpc.tracker.stopping import StopRequest
from tapml_rpc.websocket.listening import Listening, prepare
from tapml_targets.errors import InputError, TapmlError


def run_tracker(options: TrackerOptions) -> int:
    """Track devices until a signal, or until the parent is gone. Returns the exit code.

    Raises SetupError if an address cannot be used, or would be open to anybody; InputError if a
    file of keys cannot be used.
    """
    check_effects(options)
    stopping = StopRequest(options.parent)
    curve = None
    if options.key:
        clients = Path(options.clients).expanduser() if options.clients else None
        curve = ServerCurve.from_files(Path(options.key).expanduser(), clients)
    browsers = _named(options)
    websocket = _websocket(options) if options.websocket or browsers else None
    loop = TrackerLoop(
        options.bind,
        options.relay_port,
        curve,
        websocket,
        options.origins,
        options.silence_seconds,
    )
    line = {
        "address": loop.address,
        "relay_port": loop.relay_port,
        "key": curve.keys.public if curve is not None else "",
        "epoch": secrets.token_hex(8),
        "pid": os.getpid(),
        "protocol": VERSION,
    }
    if loop.entrance is not None and websocket is not None:
        line |= {"websocket": loop.entrance.address, **websocket.announced}
    if browsers:
        line["browsers"] = list(browsers)
    print(json.dumps(line), flush=True)
    if sys.stderr.isatty():
        for text in how_to_open(line, socket.gethostname()):
            print(f"tapml: {text}", file=sys.stderr, flush=True)
    keepers: list[BrowserKeeper] = []

    def look(registered: Collection[str]) -> None:
        for keeper in keepers:
            keeper.tick(registered=keeper.name in registered)

    try:
        for name, browser in browsers.items():
            keepers.append(
                BrowserKeeper(_page(line, name), name, browser, options.browser_patience)
            )
        loop.run(stopping, look)
    finally:
        for keeper in keepers:
            keeper.close()
        for keeper in keepers:
            keeper.wait()
    return 0


def _named(options: TrackerOptions) -> dict[str, Browser]:
    """The browsers to start, by the names of their devices."""
    if options.browsers and options.websocket.startswith("wss:"):
        raise InputError(
            "--browser opens the page of this machine, which needs no certificate: give "
            "--websocket ws://127.0.0.1:PORT, or leave it out; wss:// is for another tracker"
        )
    named: dict[str, Browser] = {}
    for browser in map(find_browser, options.browsers):
        same = sum(other.kind == browser.kind for other in named.values())
        named[f"{browser.kind}-{same + 1}" if same else browser.kind] = browser
    return named


def _page(line: dict[str, Any], name: str) -> str:
    """The page's address on this machine, for a device of this name."""
    url = page_url(line, "127.0.0.1")
    return f"{url}{'&' if '#' in url else '#'}name={name}"


def _websocket(options: TrackerOptions) -> Listening:
    return prepare(
        options.websocket or "ws://127.0.0.1:0",
        tokens=Path(options.tokens).expanduser() if options.tokens else None,
        certificate=options.certificate,
        certificate_key=options.certificate_key,
    )


def main(arguments: list[str] | None = None) -> int:
    """Entry point of ``python -m tapml_rpc.tracker.process``."""
    parser = argparse.ArgumentParser(prog="tapml_rpc.tracker", description=__doc__)
    add_arguments(parser)
    try:
        return run_tracker(options_from(parser.parse_args(arguments)))
    except TapmlError as error:
        print(f"tapml_rpc.tracker: {error}", file=sys.stderr, flush=True)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
