"""File names in a session's folder, and the test whether the session has finished."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tapml.runs.journal import JOURNAL
from tapml_targets.errors import InputError

FINISHED: Final = "finished"
PLAN: Final = "plan.msgpack"
LIBRARY: Final = "library.msgpack"
MODEL: Final = "model.json"
REPORT: Final = "report.json"

_LARGEST_REPORT: Final = 256 << 20
_NAMED: Final = 8
_STATES: Final = {
    "failed": "failed",
    "kept": "kept on the source",
    "waiting": "not tried yet",
}


def is_session(folder: Path) -> bool:
    """Whether a folder holds a session's journal."""
    return (folder / JOURNAL).is_file()


def check_finished(folder: Path) -> None:
    """Check that a folder has a finished session.

    Raises
    ------
    InputError
        If it has no session, or not every operator is on the target. Operators that are not there
        are named if the report has them.
    """
    if not is_session(folder):
        raise InputError(
            f"{folder} is not a session: expected a folder made by `tapml offload --session`"
        )
    if not (folder / FINISHED / LIBRARY).is_file():
        raise InputError(
            f"the session in {folder} has not finished: not every operator is on the target, or "
            f"the complete model did not pass there{_why(read_report(folder))}; continue with "
            f"`tapml offload --session {folder}`"
        )


def read_report(folder: Path) -> dict[str, Any]:
    """The content of a session's ``report.json``; empty if it is missing or damaged."""
    path = folder / REPORT
    try:
        if path.stat().st_size > _LARGEST_REPORT:
            return {}
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _why(report: Mapping[str, Any]) -> str:
    """The operators that keep a session from being finished, from its report."""
    operators = report.get("operators")
    names: dict[str, list[str]] = {}
    for each in operators if isinstance(operators, list) else ():
        match each:
            case {"name": str(name), "state": str(state)}:
                names.setdefault(state, []).append(name)
    found = [
        f"{what}: {', '.join(names[state][:_NAMED])}"
        + (f" and {len(names[state]) - _NAMED} more" if len(names[state]) > _NAMED else "")
        for state, what in _STATES.items()
        if state in names
    ]
    return f" ({'; '.join(found)})" if found else ""
