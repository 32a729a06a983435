"""Arguments that name distributed settings."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any


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
