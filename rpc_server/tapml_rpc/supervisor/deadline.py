"""Notices that a command exceeds its deadline, and names the command."""

from __future__ import annotations

from typing import Final

from tapml_rpc.supervisor.worker_process import WorkerProcess
from tapml_targets.errors import KernelTimeoutError

# Seconds in which a hanging worker must begin, and then end, its answer with its stack.
_STACK_SECONDS: Final = 1.5
_TOLD_SECONDS: Final = 0.2
# Compiling kernels is slow on small boards, and is not a hang.
_LOAD_DEADLINE_FACTOR: Final = 10


class Deadline:
    """The deadline of one session's commands, in seconds."""

    def __init__(self, seconds: float, worker: WorkerProcess) -> None:
        self._seconds = seconds
        self._worker = worker
        self._last = worker.board.last
        self._asked_for_stack = 0.0

    def rest(self) -> None:
        """No command runs."""
        self._asked_for_stack = 0.0

    def check(
        self, now: float, sequence: int, index: int, started: float
    ) -> tuple[KernelTimeoutError, str] | None:
        """Check the running command: the error and the command's name once it is too late.

        `now` and `started` are by the monotonic clock; `index` is the command's place in the batch.
        """
        deadline = self._seconds
        if now - started <= deadline:
            # The name needs the batch's header unpacked: too costly ten times a second for each
            # session.
            self._asked_for_stack = 0.0
            return None
        command = self._last.name(sequence, index)
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
