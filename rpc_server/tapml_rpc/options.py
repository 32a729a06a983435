"""The command line of a server; imports nothing, so that ``--help`` is quick."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Final

from tapml_targets.platforms import DEFAULT_PLATFORM

DEFAULT_BIND: Final = "tcp://127.0.0.1:0"
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_DIGITS: Final = 15
_LAST_PORT: Final = 65535
_PORT_DIGITS: Final = 5
LEASE_VARIABLE: Final = "TAPML_RPC_LEASE"
"""Holds the lease of a server that was started for one client: what its hello must contain."""


@dataclass(frozen=True)
class ServerOptions:
    """What ``tapml rpc serve`` takes; the help texts explain it.

    Port 0 takes a free one. `session_bytes` 0 is the default bound. The server ends with the
    process `parent`, 0 for none.
    """

    device: str = DEFAULT_PLATFORM
    bind: str = DEFAULT_BIND
    data_port: int = 0
    allow_shared_libraries: bool = False
    kernel_deadline: float = 60.0
    silence_seconds: float = 60.0
    session_bytes: int = 0
    limits: str = ""
    parent: int = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the server's options on a parser."""
    default = ServerOptions()
    parser.add_argument(
        "--device",
        default=default.device,
        metavar="PLATFORM[:INDEX]",
        help="device to serve, as `tapml devices` lists it (default: %(default)s)",
    )
    parser.add_argument(
        "--bind",
        default=default.bind,
        metavar="ADDRESS",
        help="address to listen on; port 0 takes a free one (default: %(default)s)",
    )
    parser.add_argument(
        "--data-port",
        type=port_number,
        default=default.data_port,
        metavar="PORT",
        help="port for payloads, next to the address's own (default: a free one)",
    )
    parser.add_argument(
        "--allow-shared-libraries",
        action="store_true",
        help="let clients load machine code; only for clients you trust with your account",
    )
    parser.add_argument(
        "--kernel-deadline",
        type=positive_seconds,
        default=default.kernel_deadline,
        metavar="SECONDS",
        help="a command that runs longer ends its session (default: %(default)g)",
    )
    parser.add_argument(
        "--silence",
        dest="silence_seconds",
        type=positive_seconds,
        default=default.silence_seconds,
        metavar="SECONDS",
        help="end sessions whose client sends nothing for so long (default: %(default)g)",
    )
    parser.add_argument(
        "--session-bytes",
        type=byte_count,
        default=default.session_bytes,
        metavar="BYTES",
        help="device memory one session may hold, 512M or 2G (default: the server's bound)",
    )
    parser.add_argument(
        "--limits",
        default=default.limits,
        metavar="PROFILE",
        help="open the device with the limits of another: a profile of its platform, or its file; "
        "where its implementation can, it refuses by itself what exceeds them",
    )
    parser.add_argument("--parent", type=int, default=0, help=argparse.SUPPRESS)


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


def options_from(arguments: argparse.Namespace) -> ServerOptions:
    """The options that `add_arguments` declared."""
    return ServerOptions(
        device=arguments.device,
        bind=arguments.bind,
        data_port=arguments.data_port,
        allow_shared_libraries=arguments.allow_shared_libraries,
        kernel_deadline=arguments.kernel_deadline,
        silence_seconds=arguments.silence_seconds,
        session_bytes=arguments.session_bytes,
        limits=arguments.limits,
        parent=arguments.parent,
    )
