"""Training invariants: what always holds in a training run that is right, and what breaks it.

``tapml invariants collect`` records a run, ``infer`` learns invariants from runs that were right,
and ``check`` tests another run against them. :func:`watch` checks a run while it trains. After
TrainCheck (OSDI 2025), section numbers below are that paper's.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tapml.invariants.recorder import set_meta
    from tapml.invariants.watching import InvariantViolated, InvariantWarning, watch

__all__ = ["InvariantViolated", "InvariantWarning", "set_meta", "watch"]

_PLACES: Final = {
    "set_meta": "tapml.invariants.recorder",
    "watch": "tapml.invariants.watching",
    "InvariantViolated": "tapml.invariants.watching",
    "InvariantWarning": "tapml.invariants.watching",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'tapml.invariants' has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
