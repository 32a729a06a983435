"""What a worker leaves behind that died or is of no use: how it ended, and in which command."""

from __future__ import annotations

from tapml_rpc.supervisor.last_commands import LastCommands
from tapml_rpc.supervisor.worker_process import WorkerProcess
from tapml_targets.errors import DeviceRestartedError


def end_and_report(
    what: str, worker: WorkerProcess, last: LastCommands
) -> tuple[DeviceRestartedError, str]:
    """End a worker, and say what its session's client should know.

    Parameters
    ----------
    what
        What happened to it, as the error is to begin.
    worker, last
        Who ran the commands, and what they were.

    Returns
    -------
    tuple
        The error, and the command that ran; empty where none did.
    """
    running = worker.board.running()
    command = last.name(*running[:2]) if running else ""
    where = f" in {command}" if command else " between two commands"
    how = f"{worker.end(kill=True)}; a new session finds the device opened anew"
    return DeviceRestartedError(f"{what}{where}: {how}{last.report(running)}"), command
