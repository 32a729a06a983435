"""Runs a command so that every Python process it starts records what it trains."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from tapml.durable.files import writing
from tapml.invariants.environment import (
    EAGER_VARIABLE,
    FOLDER_VARIABLE,
    NEEDS_VARIABLE,
)
from tapml.invariants.record import END
from tapml.invariants.trace import SUFFIX, Trace, read_trace
from tapml.isolate.child import end_with_parent
from tapml_targets.errors import InputError, SetupError

_GRACE_SECONDS: Final = 10.0


@dataclass(frozen=True)
class Collected:
    """A recorded run.

    Attributes
    ----------
    trace
        What it did; None if it made no training step.
    exit_code
        The command's.
    stopped
        Whether it was ended because what looked on asked for it.
    """

    trace: Trace | None
    exit_code: int
    stopped: bool = False


def collect(
    command: Sequence[str],
    folder: Path,
    *,
    eager: bool = False,
    needs: Path | None = None,
    look_on: Callable[[Callable[[], bool]], bool] | None = None,
    read: Callable[[Path], Trace] = read_trace,
) -> Collected:
    """Run a command with recording; its output goes where this process's goes.

    Parameters
    ----------
    command
        A program and its arguments: ``python train.py``, ``torchrun ...``, ``bash run.sh``.
    folder
        The trace's folder. An earlier trace in it is replaced.
    eager
        Run without ``torch.compile``.
    needs
        A file with :class:`~tapml.invariants.needs.Needs` as JSON: record no more than these.
    look_on
        Called while the command runs, with what tells whether it has ended; the command goes on
        if it returns True, and is ended if False.
    read
        Reads the trace when the command has ended.

    Raises
    ------
    InputError
        If there is no command or it does not exist, or the folder holds other files.
    SetupError
        If the folder cannot be written.
    """
    if not command:
        raise InputError("give a command after --, for example: -- python train.py")
    program = shutil.which(command[0])
    if program is None:
        raise InputError(f"{command[0]} is no program: give its path, or install it")
    _clear(folder)
    run = subprocess.Popen(
        [program, *command[1:]],
        env=_environment(folder, eager=eager, needs=needs),
        # One group, so that ranks that outlive their launcher are found at the end.
        start_new_session=True,
        preexec_fn=lambda: end_with_parent(signal.SIGTERM),  # noqa: PLW1509 - before threads exist
    )
    stopped = False
    try:
        if look_on is not None and not look_on(lambda: run.poll() is not None):
            # It may have ended by itself before its last steps were read.
            stopped = run.poll() is None
            _end(run, signal.SIGTERM)
        code = run.wait()
    except BaseException:
        _end(run, signal.SIGINT)
        raise
    finally:
        _end(run, signal.SIGTERM)
    trained = any(folder.glob(f"*{SUFFIX}"))
    trace = read(folder) if trained else None
    ends = [rows[-1] for rows in trace.processes] if trace is not None else []
    if stopped and ends and all(row.kind == END for row in ends):
        # It had come to its end when it was asked to.
        stopped, code = False, int(any(row.fields.get("failure") for row in ends))
    return Collected(trace, code, stopped)


def _clear(folder: Path) -> None:
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        there = list(folder.iterdir())
        other = [path.name for path in there if path.suffix != SUFFIX]
        if other:
            raise InputError(f"{folder} has other files ({other[0]}); choose an empty folder")
        for path in there:
            path.unlink()


def _environment(folder: Path, *, eager: bool, needs: Path | None) -> dict[str, str]:
    boot = Path(__file__).parent / "boot"
    packages = [
        str(Path(str(import_module(name).__file__)).parent.parent)
        for name in ("tapml", "tapml_targets", "msgspec", "pyarrow")
    ]
    variables = dict(os.environ)
    variables["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(boot), variables.get("PYTHONPATH", "")])
    )
    variables[FOLDER_VARIABLE] = str(folder.resolve())
    variables["TAPML_INVARIANTS_PACKAGES"] = os.pathsep.join(dict.fromkeys(packages))
    if needs is not None:
        variables[NEEDS_VARIABLE] = str(needs.resolve())
    if eager:
        variables[EAGER_VARIABLE] = "1"
    return variables


def _end(run: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """End every process of the run's group: politely first."""
    for each in (number, signal.SIGKILL):
        try:
            os.killpg(run.pid, each)
        except ProcessLookupError:
            break
        try:
            run.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        if each == signal.SIGKILL:
            break
    if run.poll() is None:
        raise SetupError(f"process {run.pid} of the command does not end")
