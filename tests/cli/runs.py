"""A run as its events tell it, made up so that everything that can be shown is in it."""

from __future__ import annotations

from collections.abc import Sequence

from tapml.runs.events import Event, Note, PhaseEnded, PhaseProgressed, PhaseStarted
from tapml.session.events import ModelRuns, OperatorChanged, OperatorsKnown

TIMES = {"target_ms": 0.5, "reference_ms": 0.25, "ratio": 2.0, "clock": "device events"}
MOVED = OperatorChanged(
    "softmax", "moved", 2, 4, {"tests": 12, "worst_ratio": 1.25, "times": TIMES}
)
FAILED = OperatorChanged(
    "matmul", "failed", 3, 4, {"tests": 3, "worst_ratio": 1e6, "reason": "wrong at [0, 1]\nmore"}
)
KEPT = OperatorChanged("sort", "kept", 4, 4, {"reason": "kept on the source by '*sort*'"})
BEFORE: Sequence[Event] = (
    PhaseStarted("open device"),
    PhaseEnded("open device", 0.5, "Some GPU (Some Platform)"),
    PhaseStarted("load model"),
    PhaseEnded("load model", 1.25, "tiny, float32"),
    Note("the device has no float16: the model runs as float32"),
    PhaseStarted("carve tests"),
    PhaseProgressed("carve tests", 1, 4, "9 tests"),
    PhaseEnded("carve tests", 0.5, "36 tests"),
)
MOVING: Sequence[Event] = (
    PhaseStarted("move operators", total=4),
    OperatorsKnown(("cos", "softmax", "matmul", "sort")),
    OperatorChanged("cos", "compiling", 0, 4, {}),
    OperatorChanged("cos", "moved", 1, 4, {"tests": 1, "worst_ratio": 0.0, "reused": True}),
    OperatorChanged("softmax", "compiling", 1, 4, {}),
    OperatorChanged("softmax", "replaying", 1, 4, {"tests": 12}),
    OperatorChanged("softmax", "model check", 1, 4, {"tests": 12, "worst_ratio": 1.25}),
    ModelRuns(1, 4),
    MOVED,
    FAILED,
    KEPT,
)
RUN: Sequence[Event] = (*BEFORE, *MOVING, PhaseEnded("move operators", 12.0, "2 of 4 moved"))
