"""torch and TVM are imported one after the other, whichever module asks.

TVM imports torch where it is installed. Two threads of which one imports TVM and the other torch
meet half-made modules, or crash the process.
"""

from __future__ import annotations

import importlib
import threading
from typing import Final

_IMPORTING: Final = threading.Lock()


def import_torch() -> None:
    """Import torch, or wait for the thread that does."""
    with _IMPORTING:
        importlib.import_module("torch")


def import_tvm() -> None:
    """Import TVM, or wait for the thread that does."""
    with _IMPORTING:
        importlib.import_module("tvm")
