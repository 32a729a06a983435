"""How a process that drives a device is started: as a program, or as a fork of one, the template.

The template has imported all, has one thread, and has opened no device. Its children end with it.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Final, TypeAlias

from tapml_targets.driver_discovery import driver_discovery
from tapml_targets.platforms import load_driver_module

_IMPORT_SECONDS: Final = 30.0
_ANSWER_SECONDS: Final = 5.0
_MAX_REQUEST_BYTES: Final = 64 << 10
# A child's channels, its output, and where its end is told.
_MAX_DESCRIPTORS: Final = 16
_NUMBER: Final = struct.Struct("i")


class ForkedProcess:
    """A child of a template, with what is needed of :class:`subprocess.Popen`.

    `status` is a descriptor that it owns, from which its exit code can be read.
    """

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self._status = status
        self._code: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Its exit code, as Python gives it; None while it has not ended."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its exit code; raises subprocess.TimeoutExpired after so many seconds."""
        with self._lock:
            if self._code is not None:
                return self._code
            # Another thread closes the descriptor, and its number may become another file's.
            status = os.dup(self._status)
        poll = select.poll()
        poll.register(status, select.POLLIN)
        try:
            if not poll.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        finally:
            os.close(status)
        with self._lock:
            if self._code is None:
                told = os.read(self._status, _NUMBER.size)
                # A template that has ended has taken its children with it.
                self._code = _NUMBER.unpack(told)[0] if told else -signal.SIGKILL
                os.close(self._status)
            return self._code

    def send_signal(self, number: int) -> None:
        """Send it a signal unless it has ended."""
        if self.poll() is None:
            # The template may have waited for it, and not yet told.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it without warning."""
        self.send_signal(signal.SIGKILL)


Process: TypeAlias = "subprocess.Popen[bytes] | ForkedProcess"


def start_program(
    module: str,
    options: Sequence[str],
    channels: Sequence[int],
    environment: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> tuple[Process, IO[bytes]]:
    """Start a module with channels that it inherits and options; the process, and its output.

    It is told its ``--parent``, 0 if a program stands before it, the `prefix`.
    """
    parent = 0 if prefix else os.getpid()
    process = subprocess.Popen(
        [*prefix, *_command(module), *map(str, channels), "--parent", str(parent), *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        pass_fds=channels,
        start_new_session=True,
    )
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    return process, process.stdout


class Template:
    """Starts processes for a platform's devices, on one thread; where it cannot fork, as programs.

    `module` calls :func:`fork_children` where it has the option ``--template``. The template, and
    with it all its children, ends with the thread that starts it, if the module sees to that.
    """

    def __init__(self, module: str, platform: str) -> None:
        self._module = module
        self._platform = platform
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        # It is started again if it has ended, but not if it has never answered.
        self._is_usable = _can_fork()
        self._has_answered = False
        self._is_stopped = False

    def start(self, options: Sequence[str], channels: Sequence[int]) -> tuple[Process, IO[bytes]]:
        """Start a process as :func:`start_program` does; raises OSError if nothing can.

        A TimeoutError is no reason to give up: the next one is started as a program.
        """
        if self._is_usable:
            try:
                return self._fork(options, channels)
            except TimeoutError:
                # It has children still, and may yet fork one with these channels.
                self._is_usable = False
                self._let_go()
                raise
            except ConnectionError:
                self._is_usable = self._has_answered
                self._let_go()
        if self._is_stopped:
            raise ConnectionAbortedError("no more processes are started")
        return start_program(self._module, options, channels)

    def stop(self) -> None:
        """End it, and with it its children; callable from any thread: a start under way fails."""
        self._is_stopped = True
        if (process := self._process) is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """End it, and close what is its own."""
        self.stop()
        self._let_go()

    def _let_go(self) -> None:
        if self._requests is not None:
            self._requests.close()
            self._requests = None

    def _fork(self, options: Sequence[str], channels: Sequence[int]) -> tuple[Process, IO[bytes]]:
        requests = self._requests = self._requests or self._begin()
        with ExitStack() as on_failure, ExitStack() as theirs:
            output, printing = os.pipe()
            theirs.callback(os.close, printing)
            on_failure.callback(os.close, output)
            status, telling = os.pipe()
            theirs.callback(os.close, telling)
            on_failure.callback(os.close, status)
            request = json.dumps(options).encode()
            socket.send_fds(requests, [request], [*channels, printing, telling])
            answer = requests.recv(_NUMBER.size)
            if not answer:
                raise ConnectionResetError("the template has ended")
            self._has_answered = True
            requests.settimeout(_ANSWER_SECONDS)
            (pid,) = _NUMBER.unpack(answer)
            if pid < 0:
                raise OSError(-pid, f"no process was forked: {os.strerror(-pid)}")
            on_failure.pop_all()
        return ForkedProcess(pid, status), os.fdopen(output, "rb")

    def _begin(self) -> socket.socket:
        if self._process is not None:
            self._process.wait()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_IMPORT_SECONDS)
        with ExitStack() as on_failure, theirs:
            on_failure.callback(ours.close)
            channel = theirs.fileno()
            options = ["--parent", str(os.getpid()), "--template", self._platform]
            self._process = subprocess.Popen(
                [*_command(self._module), str(channel), *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[channel],
                start_new_session=True,
            )
            if self._is_stopped:
                self._process.kill()
            on_failure.pop_all()
        return ours


def _command(module: str) -> list[str]:
    # The current folder must not influence what is imported.
    return [sys.executable, "-P", "-m", module]


def _can_fork() -> bool:
    """Whether the ends of children can be waited for beside requests, as on Linux."""
    if not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def fork_children(descriptor: int, platform: str) -> list[str]:
    """Be a template: returns in each child, with its options. The template's own end is its exit.

    `descriptor` is the socket on which they are asked for.
    """
    _import_all(platform)
    requests = socket.socket(fileno=descriptor)
    parent = os.getpid()
    ends: dict[int, tuple[int, int]] = {}
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready in ends:
                poll.unregister(ready)
                _tell_end(ready, *ends.pop(ready))
                continue
            packed, given, flags = _request(requests)
            if not packed:
                poll.unregister(requests)
                requests.close()
                continue
            try:
                pid, end = _fork(flags)
            except OSError as error:
                answer = -(error.errno or 1)
            else:
                *channels, printing, telling = given
                if pid == 0:
                    requests.close()
                    for each in (*ends, *(other for _, other in ends.values()), telling):
                        os.close(each)
                    os.setsid()
                    os.dup2(printing, 1)
                    os.dup2(printing, 2)
                    os.close(printing)
                    options: list[str] = json.loads(packed)
                    return [*map(str, channels), "--parent", str(parent), *options]
                ends[end] = pid, telling
                poll.register(end, select.POLLIN)
                answer = pid
            try:
                requests.send(_NUMBER.pack(answer))
            except OSError:
                # Who asked has not waited; the other children's users are still there.
                if answer > 0:
                    os.kill(answer, signal.SIGKILL)
            for each in given[:-1] if answer > 0 else given:
                os.close(each)
        if not ends and requests.fileno() < 0:
            os._exit(0)


def _import_all(platform: str) -> None:
    """Import what a child would; ends this process if that has, or may have, started a thread."""
    # A child says better what does not load.
    with suppress(Exception):
        load_driver_module(platform)
        driver_discovery(platform).preload()
    threads = Path("/proc/self/task")
    if not threads.is_dir() or len([*threads.iterdir()]) > 1:
        os._exit(1)
    # Children share what they do not write to.
    gc.collect()
    gc.freeze()


def _request(requests: socket.socket) -> tuple[bytes, list[int], int]:
    """The options of a child, its descriptors, and flags of these; no options at the end."""
    try:
        packed, given, flags, _ = socket.recv_fds(
            requests, _MAX_REQUEST_BYTES, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionError:
        # The last answer has not been read.
        return b"", [], 0
    return packed, given, flags


def _fork(flags: int) -> tuple[int, int]:
    """A child's number, and a descriptor that is readable once it has ended; 0 in the child."""
    if flags & socket.MSG_CTRUNC:
        raise OSError(errno.EMFILE, "its descriptors have no room here")
    pid = os.fork()
    return pid, os.pidfd_open(pid) if pid else -1


def _tell_end(end: int, pid: int, telling: int) -> None:
    _, status = os.waitpid(pid, 0)
    with suppress(OSError):
        os.write(telling, _NUMBER.pack(os.waitstatus_to_exitcode(status)))
    os.close(telling)
    os.close(end)
