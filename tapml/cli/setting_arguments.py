"""Arguments that name distributed settings."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

from tapml.cli.model_arguments import number, positive

DEADLINE_SECONDS: Final = 60.0


def assigned(text: str) -> tuple[str, list[str]]:
    """An option's name and values."""
    name, equals, values = text.partition("=")
    words = [word.strip() for word in values.split(",")]
    if not name or not equals or not all(words):
        raise argparse.ArgumentTypeError(
            f"expected NAME=VALUE,... such as kernel=fused, got {text!r}"
        )
    return name.strip(), words


def listed(expected: str, read: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """A reader of words with commas between them; `expected` says what they are."""

    def parse(text: str) -> list[Any]:
        words = [word.strip() for word in text.split(",")]
        if not all(words):
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
        return [read(word) for word in words]

    return parse


def add_settings(parser: argparse.ArgumentParser, *, engines: str, worlds: str) -> None:
    """Add the options that choose settings; the texts say what holds without them."""
    parser.add_argument(
        "--world",
        type=listed("a list of numbers of ranks such as 1,2,4", positive),
        metavar="N,...",
        help=f"numbers of ranks (default: {worlds})",
    )
    parser.add_argument(
        "--engine",
        type=listed("a list of engines such as ddp,torchrec", str),
        metavar="NAME,...",
        help=f"ways to distribute (default: {engines})",
    )
    parser.add_argument(
        "--set",
        action="append",
        type=assigned,
        default=[],
        metavar="NAME=VALUE,...",
        help="values of an engine's own parameter (default: its usual ones)",
    )
    parser.add_argument(
        "--deadline",
        type=number("a number of seconds of at least 2", float, 2.0, 86400.0),
        default=DEADLINE_SECONDS,
        metavar="SECONDS",
        help="time limit of each run (default: %(default)g)",
    )
