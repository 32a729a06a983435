"""What a dead or unusable worker leaves behind: how it ended, and in which command."""

from __future__ import annotations

from tapml_rpc.supervisor.worker_process import WorkerProcess
from tapml_targets.errors import DeviceRestartedError


def end_and_report(what: str, worker: WorkerProcess) -> tuple[DeviceRestartedError, str]:
    """End a worker; the error for its client, and the command that ran (empty for none).

    The error begins with `what`.
    """
    running, last = worker.board.running(), worker.board.last
    command = last.name(*running[:2]) if running else ""
    where = f" in {command}" if command else " between two commands"
    how = f"{worker.end(kill=True)}; a new session opens the device again"
    return DeviceRestartedError(f"{what}{where}: {how}{last.report(running)}"), command
