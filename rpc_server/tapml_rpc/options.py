"""Command lines of servers: their values (ports, seconds, bytes), and a dataclass of options."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, Final, TypeVar

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


def declaring(parser: Any, defaults: object) -> Callable[..., None]:
    """Declares options on a parser or a group: name, metavar, help, and what argparse takes.

    Its field in `defaults`, a dataclass, has the name of the option unless `dest` says another.
    """
    return partial(_declare, parser, defaults)


def _declare(
    parser: Any, defaults: object, name: str, metavar: str, text: str, **more: Any
) -> None:
    field = more.setdefault("dest", name.removeprefix("--").replace("-", "_"))
    parser.add_argument(
        name, **{"default": getattr(defaults, field), "metavar": metavar, "help": text, **more}
    )


def declare_origins(declare: Callable[..., None]) -> None:
    """Declare ``--origin``, of a server with WebSockets."""
    text = "let pages from https://HOST[:PORT] connect, beside those of this machine"
    declare("--origin", "ORIGIN", text, dest="origins", action="append", default=[])


def declare_certificate(declare: Callable[..., None]) -> None:
    """Declare ``--certificate`` and ``--certificate-key``."""
    declare("--certificate", "FILE", "for wss:// (default: one that is made here)")
    declare("--certificate-key", "FILE", "its private key")


def options_of(kind: Callable[..., Options], arguments: argparse.Namespace) -> Options:
    """The options of a dataclass from a command line that declared them all."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    given = {name: getattr(arguments, name) for name in names}
    return kind(
        **{name: tuple(each) if isinstance(each, list) else each for name, each in given.items()}
    )
