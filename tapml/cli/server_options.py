"""The options of ``tapml rpc serve`` and ``tapml rpc tracker`` on a command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, Final, TypeVar

from tapml_rpc.supervisor.options import BLOB_DISK_BYTES, MOST_BLOB_BYTES, SupervisorOptions
from tapml_rpc.tracker.options import TrackerOptions

Options = TypeVar("Options")

_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_DIGITS: Final = 15
_LAST_PORT: Final = 65535
_PORT_DIGITS: Final = 5


def port_number(text: str) -> int:
    """Parse a port, 0 for a free one; raises argparse.ArgumentTypeError."""
    if text.isascii() and text.isdigit() and len(text) <= _PORT_DIGITS and int(text) <= _LAST_PORT:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a port from 0 to {_LAST_PORT}, got {text!r}")


def positive_seconds(text: str) -> float:
    """Parse seconds above zero; raises argparse.ArgumentTypeError."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    # False for NaN, too.
    if seconds > 0:
        return seconds
    raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text!r}")


def byte_count(text: str) -> int:
    """Parse a number of bytes: ``1048576``, ``512M``, ``4G``; raises argparse.ArgumentTypeError."""
    digits, unit = text[:-1], _UNITS.get(text[-1:].upper(), 0)
    if not unit:
        digits, unit = text, 1
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS):
        raise argparse.ArgumentTypeError(f"expected bytes such as 512M or 4G, got {text!r}")
    return int(digits) * unit


def _declaring(parser: Any, defaults: object) -> Callable[..., None]:
    """Declares options on a parser or a group: name, metavar, help, and what argparse takes.

    Its field in `defaults`, a dataclass, has the name of the option unless `dest` says another.
    """
    return partial(_declare, parser, defaults)


def _declare(
    parser: Any, defaults: object, name: str, metavar: str, text: str, **more: Any
) -> None:
    field = more.setdefault("dest", name.removeprefix("--").replace("-", "_"))
    parser.add_argument(
        name,
        **{"default": getattr(defaults, field, None), "metavar": metavar, "help": text, **more},
    )


def _declare_origins(declare: Callable[..., None]) -> None:
    """Declare ``--origin``, of a server with WebSockets."""
    text = "let pages from https://HOST[:PORT] connect, beside those of this machine"
    declare("--origin", "ORIGIN", text, dest="origins", action="append", default=[])


def _declare_certificate(declare: Callable[..., None]) -> None:
    """Declare ``--certificate`` and ``--certificate-key``."""
    declare("--certificate", "FILE", "for wss:// (default: one that is made here)")
    declare("--certificate-key", "FILE", "its private key")


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``tapml rpc serve`` on a parser."""
    default = SupervisorOptions()
    declare = _declaring(parser, default)
    text = "device to serve, as `tapml devices` lists it (default: %(default)s)"
    declare("--device", "PLATFORM[:INDEX]", text)
    text = "address to listen on; port 0 takes a free one (default: %(default)s)"
    declare("--bind", "ADDRESS", text)
    text = "port for payloads, next to the address's own (default: a free one)"
    declare("--data-port", "PORT", text, type=port_number)
    parser.add_argument(
        "--allow-shared-libraries",
        action="store_true",
        help="let clients load machine code; only for clients you trust with your account",
    )
    text = "a command that runs longer ends its session (default: %(default)g)"
    declare("--kernel-deadline", "SECONDS", text, type=positive_seconds)
    text = "end sessions whose client sends nothing for so long (default: %(default)g)"
    declare("--silence", "SECONDS", text, dest="silence_seconds", type=positive_seconds)
    text = "device memory one session may hold, 512M or 2G (default: the server's bound)"
    declare("--session-bytes", "BYTES", text, type=byte_count)
    text = (
        "open the device with the limits of another: a profile of its platform, or its file; "
        "where its implementation can, it refuses by itself what exceeds them"
    )
    declare("--limits", "PROFILE", text)

    network = parser.add_argument_group("the network")
    declare = _declaring(network, default)
    declare("--websocket", "ADDRESS", "listen on ws://HOST:PORT or wss://HOST:PORT as well")
    _declare_origins(declare)
    declare("--tracker", "ADDRESS", "register with a tracker: tcp://, ws:// or wss://HOST:PORT")
    declare("--name", "NAME", "the device's name at the tracker (default: this host's)")
    network.add_argument(
        "--through-tracker",
        action="store_true",
        help="clients come through the tracker: this machine cannot be reached from theirs",
    )

    text = "needed if anybody but this user can connect"
    declare = _declaring(parser.add_argument_group("secrets", text), default)
    declare("--key", "FILE", "this server's .secret file of `tapml rpc keygen`, for tcp://")
    declare("--clients", "FILE", "keys that are admitted (default: this user's list)")
    declare("--tokens", "FILE", "tokens that are admitted over WebSocket")
    _declare_certificate(declare)

    text = "of weights and Libraries by their hash, so that a client sends them once"
    declare = _declaring(parser.add_argument_group("cache", text), default)
    most = f"{MOST_BLOB_BYTES >> 30}G"
    text = f"memory for it, 512M or 2G; 0 keeps no weights (default: a quarter, at most {most})"
    declare("--blob-bytes", "BYTES", text, type=byte_count, default=None)
    declare("--blob-folder", "FOLDER", "keep it on disk too, across restarts")
    text = f"most of it there (default: {BLOB_DISK_BYTES >> 30}G)"
    declare("--blob-disk-bytes", "BYTES", text, type=byte_count)


def add_tracker_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``tapml rpc tracker`` on a parser."""
    default = TrackerOptions()
    declare = _declaring(parser, default)
    text = "address for devices and clients; port 0 takes a free one (default: %(default)s)"
    declare("--bind", "ADDRESS", text)
    text = "port of the relay, for devices that only connect out (default: the next one)"
    declare("--relay-port", "PORT", text, type=port_number)
    text = "the tracker's .secret file of `tapml rpc keygen`; off loopback it needs one"
    declare("--key", "FILE", text)
    text = "keys of the devices and clients that are admitted (default: this user's list)"
    declare("--clients", "FILE", text)
    text = "for devices and clients without ZeroMQ, and for browsers"
    declare = _declaring(parser.add_argument_group("WebSocket", text), default)
    declare("--websocket", "ADDRESS", "address for them: ws://HOST:PORT or wss://HOST:PORT")
    declare("--tokens", "FILE", "tokens that are admitted there (default: this user's list)")
    _declare_certificate(declare)
    _declare_origins(declare)
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
    declare("--browser-patience", "SECONDS", text, type=positive_seconds, default=15.0)
    text = "drop those that give no sign of life for so long (default: %(default)g)"
    declare("--silence", "SECONDS", text, dest="silence_seconds", type=positive_seconds)
    parser.add_argument("--parent", type=int, default=0, help=argparse.SUPPRESS)


def serve_options(arguments: argparse.Namespace) -> SupervisorOptions:
    """The options that `add_serve_options` declared."""
    return _options_of(SupervisorOptions, arguments)


def tracker_options(arguments: argparse.Namespace) -> TrackerOptions:
    """The options that `add_tracker_options` declared, without those of its browsers."""
    return _options_of(TrackerOptions, arguments)


def _options_of(kind: Callable[..., Options], arguments: argparse.Namespace) -> Options:
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    given = {name: getattr(arguments, name) for name in names}
    return kind(
        **{
            name: tuple(each) if isinstance(each, list) else each
            for name, each in given.items()
            if each is not None
        }
    )
