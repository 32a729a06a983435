"""Checks that training on N devices equals training on one (D3, papers' section III).

:func:`check` runs a job, a Python file with a model, a batch and a step, on one device and on
ranks that talk over gloo, and compares everything the step computes.
"""

from __future__ import annotations

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from tapml.distributed.checking import check
    from tapml.distributed.results import Check, RunResult, Setting

__all__ = ["Check", "RunResult", "Setting", "check"]

_HOME = {
    "check": "tapml.distributed.checking",
    "Check": "tapml.distributed.results",
    "RunResult": "tapml.distributed.results",
    "Setting": "tapml.distributed.results",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'tapml.distributed' has no attribute {name!r}")
