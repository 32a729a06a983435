"""The content of a session's ``live.json``."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tapml.runs.progress import Live
from tapml.session.folder import REPORT


class OperatorLive(msgspec.Struct):
    """The state of an operator."""

    state: str = ""
    worst_ratio: float | None = None
    reason: str = ""


class ModelRunsLive(msgspec.Struct, frozen=True):
    """Number of model-wise runs so far, and the most that the strategy needs."""

    done: int = 0
    promised: int = 0


class VerdictsLive(msgspec.Struct, frozen=True):
    """Numbers of operators with reused verdicts, repeated verdicts and first verdicts.

    `why` counts the changed dependencies of repeated verdicts.
    """

    standing: int = 0
    again: int = 0
    fresh: int = 0
    why: dict[str, int] = {}


class SessionLive(Live, kw_only=True):
    """A session's ``live.json``.

    Attributes
    ----------
    device
        The device's name, once it is open.
    current
        The current operator.
    model_runs, verdicts, operators
        Progress of the migration.
    report_version
        See :func:`report_version`; only a reader sets it.
    """

    device: str = ""
    current: str = ""
    model_runs: ModelRunsLive = ModelRunsLive()
    verdicts: VerdictsLive = VerdictsLive()
    operators: dict[str, OperatorLive] = msgspec.field(default_factory=dict)
    report_version: int = 0


def report_version(folder: Path) -> int:
    """Modification time of the report, in microseconds since the epoch; 0 if there is none.

    JavaScript represents these numbers exactly.
    """
    try:
        return (folder / REPORT).stat().st_mtime_ns // 1000
    except OSError:
        return 0
