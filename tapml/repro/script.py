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

from tapml.failures.build_log import MOST, in_the_source, messages_of
from tapml.replaying.failure import KERNELS
from tapml.replaying.failure_text import LOST, UNBUILT
from tapml.repro.attempt import Attempt, is_attempt, read_attempt
from tapml.repro.description import read_bounded
from tapml.repro.folder import Repro, device_like, is_repro, read_repro, replay_repro
from tapml.repro.writing import SCRIPT
from tapml.verdicts.verdict import Cause, Verdict, cause_of, failed
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
from tapml_targets.library import Library

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
        raise InputError(
            f"{folder} is not a repro folder: it holds neither a test nor kernels to try"
        )
    name = str(failure.device["name"])
    try:
        with open_local(device or device_like(failure.device)) as session:
            name = session.device.name
            verdict = _verdict(failure, session, folder / KERNELS)
    except DeviceLostError as error:
        verdict = failed(cause_of(error), LOST + first_line(error))
    print(f"{verdict.status}: {subject} on {name}: {verdict.reason}")
    for line in _remarks(failure, name, verdict):
        print(line)
    if verdict.status == "pass":
        return 0
    return EXIT_DEVICE_LOST if verdict.cause.is_loss else EXIT_MISMATCH


def _verdict(failure: Repro | Attempt, session: Session, kernels: Path) -> Verdict:
    try:
        if isinstance(failure, Repro):
            return replay_repro(failure, session).verdict
        return try_kernels(failure, session)
    except LimitExceededError as error:
        return failed(cause_of(error), str(error))
    except CompileError as error:
        return failed(
            cause_of(error), UNBUILT + _in_the_folder(str(error), kernels, failure.library)
        )


def _in_the_folder(log: str, kernels: Path, library: Library) -> str:
    """A build log about the file in the folder, where there is but one that it may speak of."""
    sources = [path for path in kernels.iterdir() if path.is_file()]
    if len(sources) != 1:
        return log
    text = read_bounded(sources[0], _MAX_SOURCE_BYTES).decode(errors="replace")
    return in_the_source(log, sources[0], text, library.modules[0].dialect)


def try_kernels(attempt: Attempt, session: Session) -> Verdict:
    """A pass where a device takes the kernels: limits first, then its compiler.

    Raises
    ------
    LimitExceededError
        If they exceed the device's limits.
    CompileError
        If the device does not build them.
    DeviceLostError
        If the device is lost over them.
    """
    attempt.require(session.device.limits)
    session.upload(attempt.library)
    reason = "the device builds its kernels and they keep within its limits"
    return Verdict("pass", 0.0, (), reason)


def first_line(error: Exception) -> str:
    """The first line of an error: what follows are commands and logs."""
    return str(error).partition("\n")[0]


def _remarks(failure: Repro | Attempt, name: str, verdict: Verdict) -> list[str]:
    lines = []
    if name != failure.device["name"]:
        lines.append(f"it was written for another device: {failure.device['name']}")
    if failure.edited:
        lines.append(f"kernels edited since: {', '.join(failure.edited)}")
    if verdict.status == failure.status and _same(verdict, failure):
        lines.append("the same as when it was written")
    elif verdict.status == failure.status:
        lines.append(f"when it was written: {failure.status}: {failure.reason}")
    else:
        lines.append(f"then: {failure.status}: {failure.reason}; now: {verdict.status}")
    return lines


def _same(now: Verdict, then: Repro | Attempt) -> bool:
    """Whether two verdicts of equal status say the same, apart from file names and addresses."""
    if now.cause.is_loss:
        # Whether and when a device hangs or crashes is chance.
        return then.cause.is_loss
    if now.cause != then.cause:
        return False
    if now.cause == Cause.UNBUILT:
        # The compiler names temporary files, or the session's own file of a hand-written kernel.
        dialect = then.library.modules[0].dialect
        messages = messages_of(now.reason, dialect)[:MOST]
        return messages == messages_of(then.reason, dialect)[:MOST] and (
            bool(messages) or now.reason == then.reason
        )
    # Which limits are exceeded follows from kernels and device; the numbers of a test do not.
    return now.cause == Cause.LIMIT or now.reason == then.reason
