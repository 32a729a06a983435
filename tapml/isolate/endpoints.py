"""The pool's view of its servers and children, and the calls that children run.

Only the pool's thread uses them, see :mod:`tapml.isolate.dispatch`.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import IO, Any, Final

from tapml.isolate.death import ChildDiedError, DeathReport
from tapml.isolate.environment import Environment
from tapml.isolate.frame import Channel, Parts, encode
from tapml.isolate.server import tail
from tapml_targets import errors
from tapml_targets.errors import InputError, TapmlError

_CLOSE_SECONDS: Final = 5.0
# Preloading modules takes seconds; a server that needs longer than this hangs.
START_SECONDS: Final = 300.0


@dataclass(frozen=True, eq=False)
class Call:
    """A job to run in a child, and the future for its result."""

    job: str
    parts: Parts
    seconds: float
    future: Future[Any]

    def fail(self, report: DeathReport) -> None:
        """Report that the process died."""
        self.future.set_exception(ChildDiedError(replace(report, job=self.job)))


def new_call(
    job: str, payload: Any, seconds: float, jobs: frozenset[str], *, create: bool = False
) -> Call:
    """A call ready to send. Raises InputError for an unknown job or an unsupported payload."""
    if job not in jobs:
        raise InputError(f"unknown job {job!r}; known: {', '.join(sorted(jobs))}")
    future: Future[Any] = Future()
    parts = encode({"job": job, "payload": payload, "create": create})
    future.set_running_or_notify_cancel()
    return Call(job, parts, seconds, future)


class Owner(ABC):
    """Receives the events of a child: a job, a worker, or a group for its members."""

    @abstractmethod
    def on_answer(self, child: Child, call: Call, answer: dict[str, Any]) -> None:
        """The child has answered a call."""

    def on_disconnect(self, child: Child) -> None:  # noqa: B027  (optional)
        """The child closed its socket; :meth:`on_exit` follows with the reason."""

    @abstractmethod
    def on_exit(self, child: Child, report: DeathReport) -> None:
        """The child has exited, before or after it answered."""


@dataclass(eq=False)
class Child:
    """A child process. `killed_by_pool` is also true if its server died."""

    number: int
    server: Server
    channel: Channel
    owner: Owner
    folder: str = ""
    pid: int = 0
    call: Call | None = None
    end_at: float = math.inf
    missed_seconds: float = 0.0
    killed_by_pool: bool = False


class Server:
    """A warm server process, its socket, its output and its children."""

    def __init__(self, environment: Environment, jobs: Sequence[str]) -> None:
        self.environment = environment
        self.children: dict[int, Child] = {}
        self.ready = False
        self.end_at = time.monotonic() + START_SECONDS
        self.output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in close)
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        with theirs:
            self.process = subprocess.Popen(
                environment.command(theirs.fileno(), jobs),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self.output,
                stderr=self.output,
                # Ctrl-C must reach only the pool's process, which then closes the socket.
                start_new_session=True,
                env=environment.variables_of_server(),
            )
        settings = {"jobs": jobs, "preload": environment.preload, "without": environment.without,
                    "scratch": environment.scratch}  # fmt: skip
        with contextlib.suppress(BrokenPipeError):
            self.channel.send(encode(settings))

    def close(self) -> DeathReport:
        """Kill it and its children; returns how it ended."""
        self.channel.close()
        self.process.terminate()
        try:
            code = self.process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        for child in self.children.values():
            # The server does this itself unless it was killed.
            if child.pid:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
            if child.folder:
                shutil.rmtree(child.folder, ignore_errors=True)
        printed = tail(self.output)
        self.output.close()
        return DeathReport.of_exit(code, printed)


def to_error(answer: dict[str, Any]) -> TapmlError:
    """The error a job raised; of the same class if that is a :class:`TapmlError`."""
    kind = getattr(errors, str(answer.get("error")), TapmlError)
    if not (isinstance(kind, type) and issubclass(kind, TapmlError)):
        kind = TapmlError
    error = kind(answer["message"])
    if "traceback" in answer:
        error.add_note(answer["traceback"])
    return error
