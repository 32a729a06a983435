"""Jobs in place of those of studies: of two operations the second never ends, and a shape dies."""

from __future__ import annotations

import os
import signal
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


def die(_: dict[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
