"""Asks drivers in a child process with a deadline, since they may hang or crash."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tapml_targets.child_process import describe_exit
from tapml_targets.errors import InputError

LIST_SECONDS: Final = 30.0
"""Time limit for listing a driver's devices, and for building and running the probe kernel."""
SECONDS_VARIABLE: Final = "TAPML_PROBE_SECONDS"


def probe_seconds(environ: Mapping[str, str] = os.environ) -> float:
    """The time limit of a driver: ``TAPML_PROBE_SECONDS``, or :data:`LIST_SECONDS`.

    An emulated or very small board needs minutes.

    Raises
    ------
    InputError
        If the variable is not a number of seconds from 1 to 3600.
    """
    text = environ.get(SECONDS_VARIABLE, "")
    if not text:
        return LIST_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 3600:
        raise InputError(f"{SECONDS_VARIABLE} is {text!r}: expected 1 to 3600 seconds")
    return seconds


def ask_child(
    arguments: list[str],
    seconds: float,
    environ: Mapping[str, str] = os.environ,
    *,
    slow_hint: str = "",
) -> tuple[dict[str, Any] | None, str]:
    """Run :mod:`tapml_targets.probe`; returns its answer, or None and what happened instead.

    `slow_hint` is appended to the message of a timeout.
    """
    root = str(Path(__file__).resolve().parent.parent)
    environ = dict(environ)
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environ.get("PYTHONPATH", ""))))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tapml_targets.probe", *arguments],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, log = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        last = (error.stderr or b"").decode(errors="replace").strip().rpartition("\n")[2][:300]
        return None, f"no answer within {seconds:g} s" + (f": {last}" if last else "") + slow_hint
    finally:
        # A driver's own child processes are in the same group.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    lines = log.decode(errors="replace").strip().splitlines()
    last = lines[-1][:300] if lines else ""
    if process.returncode < 0:
        how = describe_exit(process.returncode)
        return None, f"the driver ended the process with {how}" + (f": {last}" if last else "")
    try:
        answer = json.loads(out)
    except ValueError:
        return None, last or f"exit code {process.returncode} without an answer"
    return (answer, "") if isinstance(answer, dict) else (None, "an answer that is not a map")
