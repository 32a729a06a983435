"""The command line of a tracker; imports little, so that ``--help`` is quick."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Final

from tapml_rpc.options import port_number, positive_seconds

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
    parser.add_argument(
        "--bind",
        default=default.bind,
        metavar="ADDRESS",
        help="address for devices and clients; port 0 takes a free one (default: %(default)s)",
    )
    parser.add_argument(
        "--relay-port",
        type=port_number,
        default=default.relay_port,
        metavar="PORT",
        help="port of the relay, for devices that only connect out (default: the next one)",
    )
    parser.add_argument(
        "--key",
        default=default.key,
        metavar="FILE",
        help="the tracker's .secret file of `tapml rpc keygen`; off loopback it needs one",
    )
    parser.add_argument(
        "--clients",
        default=default.clients,
        metavar="FILE",
        help="keys of the devices and clients that are admitted (default: this user's list)",
    )
    browsers = parser.add_argument_group(
        "WebSocket", "for devices and clients without ZeroMQ, and for browsers"
    )
    for name, metavar, text in (
        ("--websocket", "ADDRESS", "address for them: ws://HOST:PORT or wss://HOST:PORT"),
        ("--tokens", "FILE", "tokens that are admitted there (default: this user's list)"),
        ("--certificate", "FILE", "for wss:// (default: one that is made here)"),
        ("--certificate-key", "FILE", "its private key"),
    ):
        browsers.add_argument(name, default="", metavar=metavar, help=text)
    browsers.add_argument(
        "--origin",
        dest="origins",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let pages from https://HOST[:PORT] connect, beside those of this machine",
    )
    browsers.add_argument(
        "--browser",
        dest="browsers",
        action="append",
        nargs="?",
        const="auto",
        default=[],
        metavar="WHICH",
        help="start a browser without a window as a device, and restart it: chromium, firefox or "
        "a program (default: the first that is installed); may be given more than once",
    )
    browsers.add_argument(
        "--browser-patience",
        type=positive_seconds,
        default=default.browser_patience,
        metavar="SECONDS",
        help="restart such a browser when its page has been away so long (default: %(default)g)",
    )
    browsers.add_argument(
        "--silence",
        dest="silence_seconds",
        type=positive_seconds,
        default=default.silence_seconds,
        metavar="SECONDS",
        help="drop those that give no sign of life for so long (default: %(default)g)",
    )
    parser.add_argument("--parent", type=int, default=0, help=argparse.SUPPRESS)


def options_from(arguments: argparse.Namespace) -> TrackerOptions:
    """The options that `add_arguments` declared."""
    return TrackerOptions(
        bind=arguments.bind,
        relay_port=arguments.relay_port,
        key=arguments.key,
        clients=arguments.clients,
        websocket=arguments.websocket,
        tokens=arguments.tokens,
        certificate=arguments.certificate,
        certificate_key=arguments.certificate_key,
        origins=tuple(arguments.origins),
        browsers=tuple(arguments.browsers),
        browser_patience=arguments.browser_patience,
        silence_seconds=arguments.silence_seconds,
        parent=arguments.parent,
    )
