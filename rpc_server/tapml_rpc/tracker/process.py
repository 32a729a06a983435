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
from pathlib import Path

from tapml_rpc.security.curve import ServerCurve
from tapml_rpc.tracker.loop import TrackerLoop
from tapml_rpc.tracker.options import TrackerOptions, add_arguments, options_from
from tapml_rpc.tracker.page_address import how_to_open
from tapml_rpc.tracker.records import VERSION
from tapml_rpc.tracker.stopping import StopRequest
from tapml_rpc.websocket.listening import Listening, prepare
from tapml_targets.errors import TapmlError


def run_tracker(options: TrackerOptions) -> int:
    """Track devices until a signal, or until the parent is gone. Returns the exit code.

    Raises
    ------
    SetupError
        If an address cannot be used, or would be open to anybody.
    InputError
        If a file of keys cannot be used.
    """
    stopping = StopRequest(options.parent)
    curve = None
    if options.key:
        clients = Path(options.clients) if options.clients else None
        curve = ServerCurve.from_files(Path(options.key), clients)
    websocket = _websocket(options) if options.websocket else None
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
    print(json.dumps(line), flush=True)
    if sys.stderr.isatty():
        for text in how_to_open(line, socket.gethostname()):
            print(f"tapml: {text}", file=sys.stderr, flush=True)
    loop.run(stopping)
    return 0


def _websocket(options: TrackerOptions) -> Listening:
    return prepare(
        options.websocket,
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
