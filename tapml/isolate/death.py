"""How a child ended when it did not answer."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from tapml_targets.errors import TapmlError


@dataclass(frozen=True)
class DeathReport:
    """The end of a child that gave no result.

    Attributes
    ----------
    job
        The job's name.
    signal_number
        Signal that ended it; 0 if none did.
    exit_code
        Its exit code; -1 where a signal ended it.
    deadline_seconds
        The deadline it missed; 0 if it missed none.
    stderr_tail
        The last of what it printed.
    """

    job: str
    signal_number: int = 0
    exit_code: int = -1
    deadline_seconds: float = 0.0
    stderr_tail: str = ""

    @property
    def reason(self) -> str:
        """One line: what ended it."""
        if self.deadline_seconds:
            return f"did not end within {self.deadline_seconds:g} s"
        if self.signal_number:
            # Without a deadline missed, it is the kernel's usual answer to a full memory.
            hint = " (out of memory?)" if self.signal_number == signal.SIGKILL else ""
            return f"was ended by {_signal_name(self.signal_number)}{hint}"
        return f"exited with code {self.exit_code} and no result"


class ChildDiedError(TapmlError):
    """A job's process crashed, was killed, or missed its deadline.

    Attributes
    ----------
    report
        What is known about its end.
    """

    def __init__(self, report: DeathReport) -> None:
        tail = f"; it printed last:\n{report.stderr_tail}" if report.stderr_tail else ""
        super().__init__(f"the process for {report.job!r} {report.reason}{tail}")
        self.report = report


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
