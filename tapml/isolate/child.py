"""The forked child: it runs the jobs it receives, answers, and exits when its socket closes."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any

from tapml.isolate.frame import Channel, Parts, encode
from tapml.isolate.member import Member
from tapml_targets.errors import ProtocolError, TapmlError

_PR_SET_PDEATHSIG = 1
_TRACEBACK_CHARACTERS = 8000


def run_child(
    channel: Channel, jobs: Collection[str], member: Member | None, output_fd: int
) -> None:
    """Serve the channel, then exit the process; never returns."""
    code = 1
    try:
        _detach(output_fd)
        serve(channel, jobs, member)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        # Skip the interpreter's shutdown: exit handlers of preloaded modules belong to the server.
        os._exit(code)


def serve(channel: Channel, jobs: Collection[str], member: Member | None = None) -> None:
    """Run jobs until the other end closes.

    A job takes the payload. If a message has ``create`` set, the child keeps the job's result and
    passes it to later jobs as their first argument. Jobs of a group get the `member` first.
    """
    first: tuple[Any, ...] = () if member is None else (member,)
    failures = []
    while True:
        try:
            received = channel.receive(wait=True)
        except EOFError:
            return
        for message, _ in received:
            try:
                result = _job(message["job"], jobs)(*first, message["payload"])
                if message["create"]:
                    first, result = (result,), None
                channel.send(_flushed(encode({"result": result})))
            except Exception as error:
                channel.send(_flushed(encode(_failure(error))))
                if member is not None:
                    # The traceback keeps the job's sockets open. Otherwise its peers would fail
                    # before the pool has found out which member failed first.
                    failures.append(error)


def end_with_parent(number: signal.Signals) -> None:
    """Ask Linux to send this process a signal when the thread that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number))


def _job(name: str, jobs: Collection[str]) -> Callable[..., Any]:
    if name not in jobs:
        raise ProtocolError(f"the job {name!r} is not registered in this process")
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found


def _failure(error: Exception) -> dict[str, str]:
    if isinstance(error, TapmlError):
        return {"error": type(error).__name__, "message": str(error)}
    return {
        "error": TapmlError.__name__,
        "message": f"{type(error).__name__}: {error}",
        "traceback": traceback.format_exc()[-_TRACEBACK_CHARACTERS:],
    }


def _flushed(parts: Parts) -> Parts:
    # The pool may kill this process as soon as it has answered.
    _flush()
    return parts


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _detach(output_fd: int) -> None:
    """Own process group, output to a file, no core dumps, killed when the server dies."""
    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    end_with_parent(signal.SIGKILL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    # Print the Python stack on a crash, even if the stack overflowed.
    faulthandler.enable(file=2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
