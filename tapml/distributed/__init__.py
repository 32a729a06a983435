"""Checks that training on N devices equals training on one (D3, papers' section III).

:func:`check` runs a job, a Python file with a model, a batch and a step, on one device and on
ranks that talk over gloo, and compares everything the step computes. :func:`record` and
:func:`compare` do so for ranks that the user's own launcher starts. :func:`fuzz` checks generated
models, :func:`rerun` their findings with a fix; :func:`settings` lists what can be run, and
:func:`audit` tries what is pruned.
"""

from __future__ import annotations

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from tapml.distributed.checking import check
    from tapml.distributed.fuzzing.fuzz import Fuzzed, fuzz
    from tapml.distributed.fuzzing.rerunning import rerun
    from tapml.distributed.launched import Recording, record
    from tapml.distributed.listing import Audited, audit, settings
    from tapml.distributed.recorded_runs import compare
    from tapml.distributed.results import Check, RunResult, Setting

__all__ = [
    "Audited",
    "Check",
    "Fuzzed",
    "Recording",
    "RunResult",
    "Setting",
    "audit",
    "check",
    "compare",
    "fuzz",
    "record",
    "rerun",
    "settings",
]

_HOME = {
    "audit": "tapml.distributed.listing",
    "Audited": "tapml.distributed.listing",
    "fuzz": "tapml.distributed.fuzzing.fuzz",
    "Fuzzed": "tapml.distributed.fuzzing.fuzz",
    "rerun": "tapml.distributed.fuzzing.rerunning",
    "settings": "tapml.distributed.listing",
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
