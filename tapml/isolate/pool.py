"""The pool as its users see it: submit a job, get a future."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import IO, Any, Final, Self

from tapml.isolate.death import ChildDiedError, DeathReport
from tapml.isolate.frame import Decoder, encode
from tapml.isolate.jobs import JOBS
from tapml_targets import errors
from tapml_targets.errors import InputError, ProtocolError, TapmlError

DEFAULT_DEADLINE_SECONDS: Final = 120.0
_READ_BYTES: Final = 1 << 20
_TAIL_BYTES: Final = 4000
_CLOSE_SECONDS: Final = 5.0


class Pool:
    """Runs jobs in child processes, several at a time; a context manager.

    The server process starts with the first job and restarts after a death.

    Parameters
    ----------
    workers
        Children at a time; default: the processors this process may use.
    deadline_seconds
        After this long a job's process is killed.
    jobs
        Names and ``module:function`` locations that may be run.
    preload
        Modules the server imports before it forks.
    without
        Modules that imports in the server must not find: tvm-ffi imports torch if it is there,
        which triples the time the compiler takes to load.
    """

    def __init__(
        self,
        *,
        workers: int | None = None,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
        jobs: Mapping[str, str] = JOBS,
        preload: Sequence[str] = (),
        without: Sequence[str] = (),
    ) -> None:
        if workers is not None and workers < 1:
            raise InputError(f"a pool needs at least one worker, got {workers}")
        self.workers = workers or _processors()
        self.deadline_seconds = deadline_seconds
        self._jobs = dict(jobs)
        self._settings = {
            "jobs": self._jobs,
            "workers": self.workers,
            "preload": list(preload),
            "without": list(without),
        }
        self._lock = threading.Lock()
        self._server: _Connection | None = None
        self._count = 0
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Begin to warm the server up, without waiting for it."""
        with self._lock:
            self._connection()

    def submit(
        self, job: str, payload: Any, *, deadline_seconds: float | None = None
    ) -> Future[Any]:
        """Run a job in a child of its own.

        Parameters
        ----------
        job
            A name of the pool's jobs.
        payload
            Plain data, handed to the job's function.
        deadline_seconds
            Its own deadline, counted from its start.

        Returns
        -------
        Future
            Its result; or the TapmlError the job raised; or ChildDiedError.

        Raises
        ------
        InputError
            If no job has that name, or the pool is closed.
        """
        if job not in self._jobs:
            raise InputError(f"unknown job {job!r}; known: {', '.join(sorted(self._jobs))}")
        deadline = self.deadline_seconds if deadline_seconds is None else deadline_seconds
        with self._lock:
            if self._closed:
                raise InputError("the pool is closed")
            self._count += 1
            return self._connection().send(self._count, job, payload, deadline)

    def close(self) -> None:
        """End the server and every child. Jobs not done fail with ChildDiedError."""
        with self._lock:
            self._closed = True
            server, self._server = self._server, None
        if server is not None:
            server.close()

    def _connection(self) -> _Connection:
        if self._server is not None and not self._server.alive:
            self._server.close()
            self._server = None
        if self._server is None:
            self._server = _Connection(self._settings)
        return self._server


class _Connection:
    """One server process, and the thread that hands its answers out."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.alive = True
        self._pending: dict[int, tuple[str, float, Future[Any]]] = {}
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in close)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tapml.isolate.server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                # Ctrl-C is for the pool's process, which then closes the socket.
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._socket.sendall(encode(settings))
        self._reader = threading.Thread(target=self._read, name="tapml-isolate", daemon=True)
        self._reader.start()

    def send(self, number: int, job: str, payload: Any, deadline: float) -> Future[Any]:
        future: Future[Any] = Future()
        request = {"number": number, "job": job, "payload": payload, "deadline": deadline}
        with self._lock:
            self._pending[number] = (job, deadline, future)
        future.set_running_or_notify_cancel()
        try:
            self._socket.sendall(encode(request))
        except OSError:
            self._fail_all()
        return future

    def close(self) -> None:
        self.alive = False
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if threading.current_thread() is not self._reader:
            self._reader.join(_CLOSE_SECONDS)
        self._socket.close()
        self._output.close()

    def _read(self) -> None:
        decoder = Decoder()
        try:
            while data := self._socket.recv(_READ_BYTES):
                for answer in decoder.feed(data):
                    self._resolve(answer)
        except (OSError, ProtocolError):
            pass
        finally:
            self.alive = False
            self._fail_all()

    def _resolve(self, answer: dict[str, Any]) -> None:
        with self._lock:
            entry = self._pending.pop(answer.get("number", -1), None)
        if entry is None:
            return
        job, deadline, future = entry
        if "result" in answer:
            future.set_result(answer["result"])
        elif "error" in answer:
            future.set_exception(_rebuilt(answer))
        else:
            future.set_exception(
                ChildDiedError(
                    DeathReport(
                        job=job,
                        signal_number=answer.get("signal", 0),
                        exit_code=answer.get("exit_code", -1),
                        deadline_seconds=deadline if answer.get("deadline") else 0.0,
                        stderr_tail=answer.get("stderr_tail", ""),
                    )
                )
            )

    def _fail_all(self) -> None:
        """The server is gone: whatever it still had to do failed with it."""
        with self._lock:
            lost, self._pending = list(self._pending.values()), {}
        if not lost:
            return
        try:
            code = self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            code = 0
        tail = _tail(self._output)
        for job, _, future in lost:
            report = DeathReport(job, max(0, -code), max(-1, code), stderr_tail=tail)
            future.set_exception(ChildDiedError(report))


def _rebuilt(answer: dict[str, Any]) -> TapmlError:
    """The error the job raised, of the same class where it is one of the tree."""
    kind = getattr(errors, str(answer["error"]), TapmlError)
    if not (isinstance(kind, type) and issubclass(kind, TapmlError)):
        kind = TapmlError
    error = kind(answer["message"])
    for note in filter(None, (answer.get("traceback"), answer.get("stderr_tail"))):
        error.add_note(note)
    return error


def _tail(output: IO[bytes]) -> str:
    try:
        size = output.seek(0, os.SEEK_END)
        output.seek(max(0, size - _TAIL_BYTES))
        return output.read().decode(errors="replace").strip()
    except ValueError:
        return ""


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
