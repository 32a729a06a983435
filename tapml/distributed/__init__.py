"""Checks that training on N devices equals training on one (D3, papers' section III).

:func:`check` runs a job, a Python file with a model, a batch and a step, on one device and on
ranks that talk over gloo, and compares everything the step computes. :func:`record` and
:func:`compare` do so for ranks that the user's own launcher starts.
"""

from __future__ import annotations

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from tapml.distributed.checking import check
    from tapml.distributed.launched import Recording, record
    from tapml.distributed.recorded_runs import compare
    from tapml.distributed.results import Check, RunResult, Setting

__all__ = ["Check", "Recording", "RunResult", "Setting", "check", "compare", "record"]

_HOME = {
    "check": "tapml.distributed.checking",
    "compare": "tapml.distributed.recorded_runs",
    "record": "tapml.distributed.launched",
    "Recording": "tapml.distributed.launched",
    "Check": "tapml.distributed.results",
    "RunResult": "tapml.distributed.results",
    "Setting": "tapml.distributed.results",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'tapml.distributed' has no attribute {name!r}")
