"""What ``repro.py`` of a repro folder does: replay the failure and say whether it is the same.

Base install and a driver only. The file itself holds a dozen lines that call :func:`main`, so that
an old folder is replayed by the tapml that is installed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tapml.carving.lost import LOST, UNBUILT
from tapml.carving.replay_repro import SCRIPT
from tapml.carving.repro_attempt import Attempt, is_attempt, read_attempt
from tapml.carving.repro_device import device_like
from tapml.carving.repro_failure import KERNELS
from tapml.carving.repro_folder import Repro, is_repro, read_repro, replay_repro
from tapml.carving.repro_tensors import read_bounded
from tapml.kernels.build_log import MOST, in_the_source, messages_of
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.errors import (
    EXIT_DEVICE_LOST,
    EXIT_INTERRUPTED,
    EXIT_MISMATCH,
    CompileError,
    DeviceLostError,
    InputError,
    LimitExceededError,
    TapmlError,
)

_MAX_SOURCE_BYTES: Final = 64 << 20


def main(folder: Path, arguments: Sequence[str]) -> int:
    """Replay what is in `folder`; the exit code.

    Parameters
    ----------
    folder
        A repro folder of either kind: a carved test, or kernels that a device does not take.
    arguments
        ``--device NAME``; the device it was written for where it is not given.
    """
    parser = argparse.ArgumentParser(
        prog=SCRIPT,
        description=f"Replay the failure in {folder.name} and compare the verdict with that of "
        "then. Exit codes: 0 it passes now, 1 it fails, 2 input or environment, 3 no such device, "
        "4 the device was lost.",
    )
    parser.add_argument("--device", metavar="NAME", help="default: the device it was written for")
    options = parser.parse_args(arguments)
    try:
        return _replay(folder, options.device)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except TapmlError as error:
        print(f"{SCRIPT}: {error}", file=sys.stderr)
        return error.exit_code


def _replay(folder: Path, device: str | None) -> int:
    failure: Repro | Attempt
    if is_repro(folder):
        failure = read_repro(folder)
        subject = failure.case.id
    elif is_attempt(folder):
        failure = read_attempt(folder)
        subject = failure.operator
    else:
        raise InputError(f"{folder} is no repro folder: it has neither a test nor an attempt in it")
    name = str(failure.device["name"])
    try:
        with open_local(device or device_like(failure.device)) as session:
            name = session.device.name
            status, reason = _verdict(failure, session)
            if reason.startswith(UNBUILT):
                reason = UNBUILT + _in_the_folder(reason.removeprefix(UNBUILT), folder / KERNELS)
    except DeviceLostError as error:
        status, reason = "fail", LOST + first_line(error)
    print(f"{status}: {subject} on {name}: {reason}")
    for line in _remarks(failure, name, status, reason):
        print(line)
    if status == "pass":
        return 0
    return EXIT_DEVICE_LOST if reason.startswith(LOST) else EXIT_MISMATCH


def _verdict(failure: Repro | Attempt, session: Session) -> tuple[str, str]:
    if isinstance(failure, Repro):
        try:
            verdict = replay_repro(failure, session).verdict
        except CompileError as error:
            return "fail", f"{UNBUILT}{error}"
        return verdict.status, verdict.reason
    return try_kernels(failure, session)


def _in_the_folder(log: str, kernels: Path) -> str:
    """A build log about the file in the folder, where there is but one that it may speak of."""
    sources = [path for path in kernels.iterdir() if path.is_file()]
    if len(sources) != 1:
        return log
    text = read_bounded(sources[0], _MAX_SOURCE_BYTES).decode(errors="replace")
    return in_the_source(log, sources[0], text)


def try_kernels(attempt: Attempt, session: Session) -> tuple[str, str]:
    """Status and reason of giving kernels to a device: limits first, then its compiler.

    Raises
    ------
    DeviceLostError
        If the device is lost over them.
    """
    try:
        attempt.require(session.device.limits)
        session.upload(attempt.library)
    except LimitExceededError as error:
        return "fail", str(error)
    except CompileError as error:
        return "fail", f"{UNBUILT}{error}"
    return "pass", "the device builds its kernels and they keep within its limits"


def first_line(error: Exception) -> str:
    """The first line of an error: what follows are commands and logs."""
    return str(error).partition("\n")[0]


def _remarks(failure: Repro | Attempt, name: str, status: str, reason: str) -> list[str]:
    lines = []
    if name != failure.device["name"]:
        lines.append(f"it was written for another device: {failure.device['name']}")
    if failure.edited:
        lines.append(f"kernels edited since: {', '.join(failure.edited)}")
    if status == failure.status and _same(reason, failure.reason):
        lines.append("the same as when it was written")
    elif status == failure.status:
        lines.append(f"when it was written: {failure.status}: {failure.reason}")
    else:
        lines.append(f"then: {failure.status}: {failure.reason}; now: {status}")
    return lines


def _same(now: str, then: str) -> bool:
    """Whether two reasons say the same, names of temporary files and addresses apart."""
    if now.startswith(LOST):
        # How a device goes down, and after how long, is a matter of chance.
        return then.startswith(LOST)
    if now.startswith(UNBUILT) and then.startswith(UNBUILT):
        # Of a kernel written by hand the first messages were kept, with its own file in them.
        messages, kept = messages_of(now)[:MOST], messages_of(then)[:MOST]
        return messages == kept and (bool(messages) or now == then)
    # A hand-written kernel was named by its place in the session, which the folder stands without.
    return now == then or then.endswith(f": {now}")
