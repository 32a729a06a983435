"""What a server takes on its command line; imports nothing, so that ``--help`` is quick."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Final

DEFAULT_BIND: Final = "tcp://127.0.0.1:0"
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_DIGITS: Final = 15
_LAST_PORT: Final = 65535
_PORT_DIGITS: Final = 5
LEASE_VARIABLE: Final = "TAPML_RPC_LEASE"
"""Tells a server that was started for one client, and nobody else, what that client will say."""


@dataclass(frozen=True)
class ServerOptions:
    """What ``tapml rpc serve`` takes.

    Attributes
    ----------
    device
        ``opencl`` for the platform's best device, ``opencl:1`` for that one.
    bind
        ``tcp://host:port`` of the control socket, on loopback; port 0 takes a free one.
    data_port
        Port of the data socket on the same host; 0 takes a free one.
    allow_shared_libraries
        Whether clients may load machine code.
    kernel_deadline
        Longest time of one command in seconds.
    silence_seconds
        A session whose client says nothing for so long is ended.
    session_bytes
        Device memory of one session; 0 for the default bound.
    parent
        Process that started this one; when it ends, so does the server. 0 for none.
    """

    device: str = "opencl"
    bind: str = DEFAULT_BIND
    data_port: int = 0
    allow_shared_libraries: bool = False
    kernel_deadline: float = 60.0
    silence_seconds: float = 60.0
    session_bytes: int = 0
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
        help="end sessions whose client says nothing for so long (default: %(default)g)",
    )
    parser.add_argument(
        "--session-bytes",
        type=byte_count,
        default=default.session_bytes,
        metavar="BYTES",
        help="device memory one session may hold, 512M or 2G (default: no bound of its own)",
    )
    parser.add_argument("--parent", type=int, default=0, help=argparse.SUPPRESS)


def port_number(text: str) -> int:
    """A port as a person writes it, 0 for one that is free.

    Raises
    ------
    argparse.ArgumentTypeError
        If it is none.
    """
    if text.isascii() and text.isdigit() and len(text) <= _PORT_DIGITS and int(text) <= _LAST_PORT:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a port from 0 to {_LAST_PORT}, got {text!r}")


def positive_seconds(text: str) -> float:
    """A time as a person writes it.

    Raises
    ------
    argparse.ArgumentTypeError
        If it is none, or not above zero.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    # Not so either for what is no number.
    if seconds > 0:
        return seconds
    raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text!r}")


def byte_count(text: str) -> int:
    """A number of bytes as a person writes it: ``1048576``, ``512M``, ``4G``.

    Raises
    ------
    argparse.ArgumentTypeError
        If it is none.
    """
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
        parent=arguments.parent,
    )
