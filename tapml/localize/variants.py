"""Replays one failing test with another Library, as often as it takes to believe what comes out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tapml.carving.replay import replay
from tapml.carving.repro_failure import Failure
from tapml.compare.expectation import Expectation
from tapml.compare.oracle import CarvedCase
from tapml.compare.verdict import Status, Verdict, worse
from tapml_rpc.client import Session
from tapml_rpc.remote import RemoteLibrary
from tapml_targets.errors import DeviceLostError, TapmlError
from tapml_targets.library import Library

# A kernel that was once wrong in so many replays is taken to be right where all of these pass.
_UNSTEADY_REPLAYS: Final = 8
_GIST_CHARACTERS: Final = 400


NOT_THE_TARGET: Final = ("reference", "importer", "twin")
"""Suspects of a verdict that leaves the target in peace."""


@dataclass(frozen=True)
class Trial:
    """What a variant gave.

    Attributes
    ----------
    variant
        What was done, in words.
    status
        The gravest verdict of its replays; None where it could not be replayed.
    text
        The verdict in numbers, or why there is none.
    right
        Whether it passes, or the verdict accuses the reference and not the target: where an
        operator loses its digits in any arithmetic of its dtype, a right kernel is off as well.
    late
        Whether it was left out because the time was up.
    """

    variant: str
    status: Status | None
    text: str
    right: bool = False
    late: bool = False

    @property
    def wrong(self) -> bool:
        """Whether the variant fails as the original does."""
        return self.status in ("fail", "degraded") and not self.right


@dataclass(frozen=True)
class _Held:
    """An oracle that knows one test."""

    expectation: Expectation

    def expect(self, test: CarvedCase) -> Expectation:
        return self.expectation

    def appeal(self, test: CarvedCase) -> Expectation:
        return self.expectation


class Trials:
    """Runs variants against one failing test until the time is up.

    Parameters
    ----------
    failure
        The test, its expectation and its policy.
    budget_seconds
        After so long nothing more is begun; what is running is finished.
    """

    def __init__(self, failure: Failure, budget_seconds: float) -> None:
        self._failure = failure
        self._seconds = budget_seconds
        self._started = time.monotonic()
        self._replays = 1

    def again(self, session: Session) -> Trial:
        """Replay the failing Library. Where it passes at first, everything is replayed more often.

        Raises
        ------
        DeviceLostError
            If the device is lost.
        """
        variant = "the same kernel again"
        trial = self.run(variant, lambda: self._failure.library, session)
        if trial.right:
            self._replays = _UNSTEADY_REPLAYS
            trial = self.run(variant, lambda: self._failure.library, session)
        return trial

    def run(self, variant: str, make: Callable[[], Library], session: Session) -> Trial:
        """Make a variant's Library and replay the test with it.

        Raises
        ------
        DeviceLostError
            If the device is lost.
        """
        late = self.late(variant)
        if late is not None:
            return late
        try:
            return self._replay(variant, session.upload(make()), session)
        except DeviceLostError:
            raise
        except TapmlError as error:
            return Trial(variant, None, f"not replayed: {gist(error)}")

    def late(self, variant: str) -> Trial | None:
        """That a variant is left out, once the time is up; None before."""
        if time.monotonic() - self._started <= self._seconds:
            return None
        text = f"not tried: the {self._seconds:g} s for this were used up"
        return Trial(variant, None, text, late=True)

    def _replay(self, variant: str, remote: RemoteLibrary, session: Session) -> Trial:
        failure = self._failure
        case, held = failure.result.case, _Held(failure.expectation)
        verdicts = [
            replay(failure.operator, case, remote, session, held, failure.policy).verdict
            for _ in range(self._replays)
        ]
        wrong = [verdict for verdict in verdicts if not _is_right(verdict)]
        shown = (wrong or verdicts)[0]
        for verdict in wrong or verdicts:
            if worse(shown.status, verdict.status) != shown.status:
                shown = verdict
        often = f" in {len(wrong or verdicts)} of {self._replays} replays"
        text = shown.status + (often if self._replays > 1 else "")
        if shown.status == "pass":
            return Trial(variant, "pass", f"{text}, worst ratio {shown.worst_ratio:.3g}", True)
        return Trial(variant, shown.status, f"{text}: {shown.reason}", not wrong)


def _is_right(verdict: Verdict) -> bool:
    return verdict.status == "pass" or verdict.suspect in NOT_THE_TARGET


def gist(error: Exception) -> str:
    """The first line of an error, and the first that a compiler marked as one."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marked = [line for line in lines[1:] if "error:" in line]
    return " ".join((*lines[:1], *marked[:1]))[:_GIST_CHARACTERS] or type(error).__name__
