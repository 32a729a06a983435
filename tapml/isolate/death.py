"""Reports of children and groups that ended without a result."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Self

from tapml_targets.errors import TapmlError


@dataclass(frozen=True)
class DeathReport:
    """The end of a child that gave no result.

    Attributes
    ----------
    job
        The job's name.
    signal_number
        Signal that killed it; 0 if it exited.
    exit_code
        Its exit code; -1 if a signal killed it.
    deadline_seconds
        The deadline it missed; 0 if it missed none.
    closed
        Whether it was killed because its pool or worker was closed.
    stderr_tail
        The end of its output.
    """

    job: str
    signal_number: int = 0
    exit_code: int = -1
    deadline_seconds: float = 0.0
    closed: bool = False
    stderr_tail: str = ""

    @classmethod
    def of_exit(cls, code: int, stderr_tail: str) -> Self:
        """The report of a process that ended with `code`; -N means killed by signal N."""
        return cls("", max(0, -code), max(-1, code), stderr_tail=stderr_tail)

    @property
    def reason(self) -> str:
        """Why it ended, in one line."""
        if self.closed:
            return "was killed because its pool or worker was closed"
        if self.deadline_seconds:
            return f"did not finish within {self.deadline_seconds:g} s"
        if self.signal_number:
            # The pool sends SIGKILL only at a deadline or on close; otherwise it was the kernel.
            hint = " (out of memory?)" if self.signal_number == signal.SIGKILL else ""
            return f"was killed by {_signal_name(self.signal_number)}{hint}"
        return f"exited with code {self.exit_code} and no result"


class ChildDiedError(TapmlError):
    """A job's process crashed, was killed, or missed its deadline; `report` has the details."""

    def __init__(self, report: DeathReport) -> None:
        printed = f"; its last output:\n{report.stderr_tail}" if report.stderr_tail else ""
        super().__init__(f"the process for {report.job!r} {report.reason}{printed}")
        self.report = report


@dataclass(frozen=True)
class GroupReport:
    """The end of a group that failed.

    Attributes
    ----------
    job
        The job's name.
    size
        The number of members.
    culprit
        Rank of the member that failed first; None if the deadline, the server's death or
        :meth:`~tapml.isolate.pool.Pool.close` ended all members at once.
    reason
        How the culprit failed, or why the group was killed.
    death
        The death of the culprit, or of the group if there is no culprit; None if the culprit
        raised an error.
    answered
        Ranks that had returned a result.
    tails
        The end of each member's output, by rank.
    """

    job: str
    size: int
    culprit: int | None
    reason: str
    death: DeathReport | None
    answered: tuple[int, ...]
    tails: tuple[str, ...]


class GroupDiedError(TapmlError):
    """A group failed and all its members were killed; `report` has the details."""

    def __init__(self, report: GroupReport) -> None:
        who = "" if report.culprit is None else f"rank {report.culprit} of "
        lines = [f"{who}the group of {report.size} for {report.job!r} {report.reason}"]
        if report.culprit is None:
            ranks = ", ".join(map(str, report.answered)) or "none"
            lines[0] += f"; ranks that had answered: {ranks}"
        tails = enumerate(report.tails)
        lines += [f"last output of rank {rank}:\n{text}" for rank, text in tails if text]
        super().__init__("\n".join(lines))
        self.report = report


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
