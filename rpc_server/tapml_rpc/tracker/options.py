"""The command line of a tracker; imports little, so that ``--help`` is quick."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Final

from tapml_rpc.options import (
    declare_certificate,
    declare_origins,
    declaring,
    options_of,
    port_number,
    positive_seconds,
)

DEFAULT_BIND: Final = "tcp://127.0.0.1:9190"


@dataclass(frozen=True)
class TrackerOptions:
    """What ``tapml rpc tracker`` takes; the help texts explain it. Empty texts mean none.

    `relay_port` 0 takes the next port after the address's that is not the WebSocket's, or a free
    one if `bind` takes a free one as well. `clients` and `tokens` are by default the user's own
    files, the certificate of ``wss://`` one that is made here. `browser_patience` and
    `silence_seconds` are in seconds. The tracker ends with the process `parent`, 0 for none.
    """

    bind: str = DEFAULT_BIND
    relay_port: int = 0
    key: str = ""
    clients: str = ""
    websocket: str = ""
    tokens: str = ""
    certificate: str = ""
    certificate_key: str = ""
    origins: tuple[str, ...] = ()
    browsers: tuple[str, ...] = ()
    browser_patience: float = 15.0
    silence_seconds: float = 10.0
    parent: int = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the tracker's options on a parser."""
    default = TrackerOptions()
    declare = declaring(parser, default)
    text = "address for devices and clients; port 0 takes a free one (default: %(default)s)"
    declare("--bind", "ADDRESS", text)
    text = "port of the relay, for devices that only connect out (default: the next one)"
    declare("--relay-port", "PORT", text, type=port_number)
    text = "the tracker's .secret file of `tapml rpc keygen`; off loopback it needs one"
    declare("--key", "FILE", text)
    text = "keys of the devices and clients that are admitted (default: this user's list)"
    declare("--clients", "FILE", text)
    text = "for devices and clients without ZeroMQ, and for browsers"
    declare = declaring(parser.add_argument_group("WebSocket", text), default)
    declare("--websocket", "ADDRESS", "address for them: ws://HOST:PORT or wss://HOST:PORT")
    declare("--tokens", "FILE", "tokens that are admitted there (default: this user's list)")
    declare_certificate(declare)
    declare_origins(declare)
    declare(
        "--browser",
        "WHICH",
        "start a browser without a window as a device, and restart it: chromium, firefox or "
        "a program (default: the first that is installed); may be given more than once",
        dest="browsers",
        action="append",
        nargs="?",
        const="auto",
        default=[],
    )
    text = "restart such a browser when its page has been away so long (default: %(default)g)"
    declare("--browser-patience", "SECONDS", text, type=positive_seconds)
    text = "drop those that give no sign of life for so long (default: %(default)g)"
    declare("--silence", "SECONDS", text, dest="silence_seconds", type=positive_seconds)
    parser.add_argument("--parent", type=int, default=0, help=argparse.SUPPRESS)


def options_from(arguments: argparse.Namespace) -> TrackerOptions:
    """The options that `add_arguments` declared."""
    return options_of(TrackerOptions, arguments)
