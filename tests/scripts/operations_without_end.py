"""Jobs in place of those of scripts/walk_operations.py: the second operation never ends."""

from __future__ import annotations

import time
from typing import Any


def names(_: None = None) -> list[str]:
    return ["quick", "endless"]


def opened(_: list[str]) -> None:
    """Keep nothing open."""


def walk(_: None, asked: dict[str, Any]) -> list[dict[str, Any]]:
    while asked["name"] == "endless":
        time.sleep(1)
    return [{"sample": "()", "found": {"cpu": "pass"}}]
