"""The data types of a migration's journal.

A journal is an ordinary database that may have been edited, merged or restored by hand. So
:mod:`tapml.runs.journal` checks every row against these types. Fields that older versions did not
write have defaults.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from msgspec import Meta, Struct

from tapml.runs.journal import Journal
from tapml.runs.kind import RunKind

# Where a phase ran, if not on a platform.
REFERENCE: Final = "CPU, LLVM in process"
HOST: Final = "host"

_Object: TypeAlias = dict[str, Any]
_NotFinite: TypeAlias = Annotated[str, Meta(pattern="^(nan|-?inf)$")]
"""A number that JSON cannot represent."""


class _Moved(Struct):
    runs: int = 0
    moved: int = 0
    minimum: int = 0


class _EntryTime(Struct):
    calls: int
    tests: int = 0
    target_ms: float | None = None
    reference_ms: float | None = None


class _Times(Struct, frozen=True):
    target_ms: float | None = None
    reference_ms: float | None = None
    ratio: float | None = None
    clock: str = ""
    entries: dict[str, _EntryTime] = {}


class _Output(Struct):
    expected: float | _NotFinite
    actual: float | _NotFinite
    ratio: float | _NotFinite
    passing: Annotated[float, Meta(ge=-1e308, le=1e308)]
    degraded: Annotated[float, Meta(ge=-1e308, le=1e308)]
    reason: str = ""


class _Worst(Struct, frozen=True):
    outputs: list[_Output] = []


class _OperatorVerdict(Struct):
    status: str = ""
    tests: int = 0
    passed: int = 0
    probes: int = 0
    worst_ratio: float | None = None
    worst_test: str = ""
    worst: _Worst = _Worst()
    suspects: list[str] = []
    reason: str = ""
    cause: str = ""
    kernel_ms: float | None = None
    kernel: str = ""
    written: str = ""
    times: _Times = _Times()
    picture: _Object = {}


class _ModelVerdict(Struct):
    status: str = ""
    reason: str = ""
    moved_bytes: dict[str, _Moved] = {}
    room: int = 0


class _Prompt(Struct):
    text: str = ""
    tokens: list[int] = []


class _FinalVerdict(Struct):
    headline: str
    text: str
    status: str = ""
    logits: _Object = {}
    prompts: list[_Prompt] = []
    argument: str = ""


class _Phase(Struct):
    name: str = ""
    seconds: float = 0.0
    group: str = ""
    platform: str = ""
    detail: str = ""


class _Failed(Struct):
    operator: str
    reason: str
    key: str = ""
    cause: str = ""


class _Strategy(Struct):
    promised: int = 0
    model_runs: int = 0
    from_journal: int = 0
    culprits: list[list[str]] = []
    memory: dict[str, float] = {}


class _Counts(Struct):
    kept: int = 0
    again: int = 0
    first: int = 0
    why: dict[str, int] = {}


class _Quantization(Struct):
    scheme: str = ""
    positions: int = 0
    text: str = ""


class _Growth(Struct):
    entries: dict[str, dict[str, float]] = {}
    text: str = ""


class _Rooted(Struct):
    operators: dict[str, float | None] = {}


SESSION: Final = RunKind(
    "tapml-session/1",
    statuses=("pass", "degraded", "fail", "not run"),
    results={"operator": _OperatorVerdict, "model": _ModelVerdict, "final": _FinalVerdict},
    events={
        "phase": _Phase,
        "failed": _Failed,
        "moved_bytes": dict[str, _Moved],
        "strategy": _Strategy,
        "verdicts": _Counts,
        "rooted": _Rooted,
        "quantization": _Quantization,
        "growth": _Growth,
    },
    restart="start again in another folder (--session), or here with --restart",
)


def open_journal(path: Path, *, readonly: bool = False) -> Journal:
    """Open a session's journal; raises as :class:`~tapml.runs.journal.Journal` does."""
    return Journal(path, SESSION, readonly=readonly)
