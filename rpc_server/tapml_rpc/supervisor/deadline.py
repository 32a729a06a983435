"""Notices that a command takes longer than it may, and says where it was."""

from __future__ import annotations

from typing import Final

from tapml_rpc.supervisor.last_commands import LastCommands
from tapml_rpc.supervisor.worker_process import WorkerProcess
from tapml_targets.errors import KernelTimeoutError

# A worker that hangs is asked where it is: so long it may take to begin, and to end, the answer.
_STACK_SECONDS: Final = 1.5
_TOLD_SECONDS: Final = 0.2
# Building kernels is slow on small boards and says nothing about a hang.
_LOAD_DEADLINE_FACTOR: Final = 10


class Deadline:
    """One session's.

    Parameters
    ----------
    seconds
        Longest time of one command.
    worker, last
        Who runs the commands, and what they are.
    """

    def __init__(self, seconds: float, worker: WorkerProcess, last: LastCommands) -> None:
        self._seconds = seconds
        self._worker = worker
        self._last = last
        self._asked_for_stack = 0.0

    def rest(self) -> None:
        """No command runs."""
        self._asked_for_stack = 0.0

    def check(
        self, now: float, sequence: int, index: int, started: float
    ) -> tuple[KernelTimeoutError, str] | None:
        """Look at the command that runs: the error and the command's name once it is too late.

        Parameters
        ----------
        now, started
            By the monotonic clock.
        sequence, index
            The batch and the command in it.
        """
        command = self._last.name(sequence, index)
        deadline = self._seconds
        if command.startswith("load("):
            deadline *= _LOAD_DEADLINE_FACTOR
        if now - started <= deadline:
            self._asked_for_stack = 0.0
        elif not self._asked_for_stack:
            self._asked_for_stack = now
            self._worker.ask_for_stack()
        elif now - self._asked_for_stack > (
            _TOLD_SECONDS if self._worker.stack() else _STACK_SECONDS
        ):
            error = KernelTimeoutError(
                f"the device has not finished after {deadline:g} s, in {command}; its worker was "
                "ended, and this session with it. A kernel loops for ever, or needs a longer "
                f"deadline{self._last.report((sequence, index, started))}"
            )
            return error, command
        return None
