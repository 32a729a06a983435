"""Replays one failing test in variants, often enough for a reliable result.

Variants are another Library, another driver of the same platform, and a simulator that checks every
access. If two drivers disagree about a kernel, one of them or the kernel is wrong: a race or an
out-of-bounds read has any result, for which no driver is to blame.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from tapml.check.checker import open_checker
from tapml.check.operator_check import check_operator
from tapml.oracles.carved_case import CarvedCase
from tapml.replaying.failure import Failure
from tapml.replaying.replayer import replay
from tapml.verdicts.expectation import Expectation
from tapml.verdicts.verdict import Status, Verdict, worse
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_rpc.remote import RemoteLibrary
from tapml_targets.checker import has_checker
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import DeviceLostError, TapmlError
from tapml_targets.library import Library
from tapml_targets.ranking import rank_devices

# A variant of a kernel that failed once in this many replays is right if all of these pass.
_UNSTEADY_REPLAYS: Final = 8
_GIST_CHARACTERS: Final = 400


NOT_THE_TARGET: Final = ("reference", "importer", "twin")
"""Suspects of a verdict that does not blame the target."""


@dataclass(frozen=True)
class Trial:
    """The result of a variant.

    Attributes
    ----------
    variant
        Description of the variant.
    status
        The gravest verdict of its replays; None if it could not be replayed.
    text
        The verdict in numbers, or why there is none.
    right
        Whether it passes, or the verdict blames the reference and not the target: if an operator
        loses its digits in any arithmetic of its dtype, a right kernel is off as well.
    late
        Whether it was left out for lack of time.
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
    """An oracle for a single test."""

    expectation: Expectation

    def expect(self, test: CarvedCase) -> Expectation:
        return self.expectation

    def appeal(self, test: CarvedCase) -> Expectation:
        return self.expectation


class Trials:
    """Replays variants of one failing test until the time is up.

    Parameters
    ----------
    failure
        The test, its expectation and its policy.
    budget_seconds
        Nothing starts after this time; a running variant finishes.
    """

    def __init__(self, failure: Failure, budget_seconds: float) -> None:
        self._failure = failure
        self._seconds = budget_seconds
        self._started = time.monotonic()
        self._replays = 1

    def again(self, session: Session) -> Trial:
        """Replay the failing Library. If it passes at first, every variant is replayed more often.

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
        """Build a variant's Library and replay the test with it.

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
        """The result of a variant that is left out once the time is up; None before."""
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


def second_driver(session: Session) -> Callable[[], AbstractContextManager[Session]] | None:
    """Find another driver of the same platform on this machine.

    Returns
    -------
    Callable or None
        Opens the best device that passes its self-test and has another driver than the session's;
        each call starts a server process that ends with the session. None if there is no such
        device. Checkers are excluded: they run a kernel thousands of times slower.
    """
    first = session.device
    try:
        ranked = rank_devices(first.platform)
    except TapmlError:
        return None
    for device in ranked:
        other = device.description
        if (
            not device.problem
            and other.device_type != "checker"
            and _driver(other) != _driver(first)
        ):
            return lambda: open_local(other)
    return None


def _driver(device: DeviceDescription) -> tuple[str, str]:
    return device.vendor_platform, device.driver_version


CHECKER: Final = "on a simulator that checks every access"
"""Name of the simulator in the evidence."""

_TEXT_CHARACTERS: Final = 120


def check_kernel(failure: Failure) -> Trial:
    """Replay the failing test on the platform's checker.

    Returns
    -------
    Trial
        Wrong if it finds a fault of the kernel, right if it finds none, neither if it cannot run.
    """
    platform = failure.library.target
    if not has_checker(platform):
        return Trial(CHECKER, None, f"not run: no checker exists for {platform}")
    try:
        with open_checker(platform) as checker:
            found = check_operator(
                failure.operator, [failure.result.case], failure.library, checker
            )
    except TapmlError as error:
        return Trial(CHECKER, None, f"not asked: {gist(error)}")
    if not found:
        return Trial(CHECKER, "pass", "it finds no fault", right=True)
    first = found[0]
    place = f" at line {first.line}: {first.text[:_TEXT_CHARACTERS]}" if first.line else ""
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return Trial(CHECKER, "fail", f"{first.kind}{place}{more}")
