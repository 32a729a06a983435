"""Prints the verdicts of a suite during its replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tapml.runs.events import PhaseProgressed, PhaseStarted, Watcher
from tapml.runs.wording import counted

if TYPE_CHECKING:
    from tapml.replaying.results import OperatorVerdict

_PHASE: Final = "replay tests"


class VerdictLines:
    """Prints one line per operator if `shown`, and reports progress to a watcher."""

    def __init__(self, watcher: Watcher, *, shown: bool) -> None:
        self._watcher = watcher
        self._shown = shown
        self._count = 0
        watcher(PhaseStarted(_PHASE))

    def __call__(self, verdict: OperatorVerdict) -> None:
        """Report an operator's verdict."""
        self._count += 1
        if self._shown:
            print(verdict_line(verdict), flush=True)
        self._watcher(PhaseProgressed(_PHASE, self._count, detail=counted(self._count, "operator")))


def verdict_line(verdict: OperatorVerdict) -> str:
    """An operator's verdict: how many of its tests pass, the worst of them, and why."""
    total = sum(verdict.counts.values())
    parts: list[str] = [verdict.status, verdict.operator]
    if total:
        parts.append(f"{verdict.counts['pass']}/{total} pass")
        parts.append(f"worst ratio {verdict.worst_ratio:.3g}")
    parts += verdict.accusations
    if verdict.status != "pass":
        parts.append(verdict.reason)
    return "  ".join(parts)
