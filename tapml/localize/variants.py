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
from tapml.compare.verdict import Status, worse
from tapml_rpc.client import Session
from tapml_rpc.remote import RemoteLibrary
from tapml_targets.errors import DeviceLostError, TapmlError
from tapml_targets.library import Library

# A kernel that was once wrong in so many replays is taken to be right where all of these pass.
_UNSTEADY_REPLAYS: Final = 8


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
    late
        Whether it was left out because the time was up.
    """

    variant: str
    status: Status | None
    text: str
    late: bool = False

    @property
    def right(self) -> bool:
        """Whether the variant passes."""
        return self.status == "pass"

    @property
    def wrong(self) -> bool:
        """Whether the variant fails as the original does."""
        return self.status in ("fail", "degraded")


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
        if time.monotonic() - self._started > self._seconds:
            text = f"not tried: the {self._seconds:g} s for this were used up"
            return Trial(variant, None, text, late=True)
        try:
            status, text = self._replay(session.upload(make()), session)
        except DeviceLostError:
            raise
        except TapmlError as error:
            return Trial(variant, None, f"not replayed: {_first_line(str(error))}")
        return Trial(variant, status, text)

    def _replay(self, remote: RemoteLibrary, session: Session) -> tuple[Status, str]:
        failure = self._failure
        verdicts = [
            replay(
                failure.operator, failure.result.case, remote, session,
                _Held(failure.expectation), failure.policy,
            ).verdict
            for _ in range(self._replays)
        ]  # fmt: skip
        status: Status = "pass"
        for verdict in verdicts:
            status = worse(status, verdict.status)
        worst = next(verdict for verdict in verdicts if verdict.status == status)
        times = sum(verdict.status == status for verdict in verdicts)
        often = f" in {times} of {self._replays} replays" if self._replays > 1 else ""
        if status == "pass":
            ratio = max(verdict.worst_ratio for verdict in verdicts)
            return status, f"pass{often}, worst ratio {ratio:.3g}"
        return status, f"{status}{often}: {worst.reason}"


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no reason given"
