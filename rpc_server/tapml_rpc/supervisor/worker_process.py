"""A worker as the supervisor holds it: process, rings, output; and the spare one."""

from __future__ import annotations

import json
import mmap
import os
import re
import socket
import subprocess
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from copy import copy
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from tapml_rpc import wire
from tapml_rpc.failures import LOG_CHARACTERS, TRACEBACK_CHARACTERS, failure_from_wire
from tapml_rpc.security.standing import is_proven
from tapml_rpc.supervisor.board import STACK_SIGNAL, Board, make_board
from tapml_rpc.supervisor.pipe import Pipe, Ring, make_memory
from tapml_targets.child_process import OutputTail, describe_exit
from tapml_targets.description import from_plain, to_plain
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import DeviceLostError, SetupError, TapmlError
from tapml_targets.template import Template, start_program

RING_BYTES: Final = 32 << 20
PROGRAM: Final = "tapml_rpc.supervisor.worker"
START_SECONDS: Final = 60.0
KEPT_WORKERS: Final = 4
KEPT_SECONDS: Final = 60.0
KEPT_BYTES: Final = 1 << 30
# In which a worker leaves a session: on a loaded machine it may not be scheduled for some.
_REST_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 1.0
_UNSENT_BYTES: Final = 64 << 20
_END_SECONDS: Final = 1.0
# Where a worker's code begins: every complete stack of a worker contains it.
_OUTERMOST: Final = str(Path("supervisor", "worker.py"))
_CUT_SHORT: Final = "... cut short: the worker ended while it printed its stacks"
_STACK: Final = re.compile(r"(?:Fatal Python error|Current thread|Thread 0x)[^\n]*(?:\n.*)*")


class WorkerProcess:
    """One worker. It ends with the thread that starts it, or that started the `template`.

    `device` may be a device's name, which the worker looks up; its `environment` is prepared for
    the device's platform. It opens the device with the `limits` of that profile, if one is named.
    `prefix` stands before its command: a program that starts what it watches, and its options. A
    `template` has an environment of its own, and nothing before it.

    `pipe`, `up`, `down` and `board` lead to it; see :mod:`tapml_rpc.supervisor.worker`.
    """

    def __init__(
        self,
        device: DeviceDescription | str,
        *,
        allow_native: bool,
        environment: Mapping[str, str] | None = None,
        limits: str = "",
        prefix: Sequence[str] = (),
        template: Template | None = None,
    ) -> None:
        named = device if isinstance(device, str) else json.dumps(to_plain(device))
        options = ["--device", named, "--limits", limits]
        options += ["--allow-shared-libraries"] if allow_native else []
        with ExitStack() as on_failure:
            channels, theirs = _open_channels(on_failure)
            with theirs:
                given = (theirs.fileno(), *channels[1:])
                self._process, output = (
                    template.start(options, given)
                    if template is not None
                    else start_program(PROGRAM, options, given, environment, prefix)
                )
            on_failure.pop_all()
        self._use(*channels)
        self._ending: threading.Thread | None = None
        self._printed = OutputTail(output, LOG_CHARACTERS)

    def again(self) -> WorkerProcess:
        """The same process for another session, on channels that nobody has used.

        This one's are closed. It is ready, see :meth:`wait_until_open`, once it holds nothing more
        of the last session but what it built. Raises OSError if it does not read.
        """
        with ExitStack() as on_failure:
            channels, theirs = _open_channels(on_failure)
            with theirs:
                for descriptor in (theirs.fileno(), *channels[1:]):
                    self.pipe.send(wire.pack({"type": "again"}), descriptor=descriptor)
            on_failure.pop_all()
        other = copy(self)
        other._use(*channels)
        for channel in (self.pipe, self.up, self.down, self.board):
            channel.close()
        return other

    def _use(self, pipe: socket.socket, up: int, down: int, board: int) -> None:
        self.up, self.down = Ring(up), Ring(down)
        self.board = Board(board)
        self.pipe = Pipe(pipe, most_unsent=_UNSENT_BYTES)

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def wait_until_open(
        self, seconds: float = START_SECONDS, stop: Callable[[], bool] = lambda: False
    ) -> DeviceDescription:
        """Wait until the device is open, or `stop`; raises what kept it from opening."""
        deadline = time.monotonic() + seconds
        while self.pipe.waiting() is None:
            if stop():
                raise SetupError("the device was closed before it was open")
            if time.monotonic() > deadline:
                raise SetupError(
                    f"the device was not open after {seconds:g} s; its driver printed:\n"
                    f"{self.tail()}"
                )
            # Before its pipe is read: it may say why the device does not open, and end.
            lives = self.alive()
            if not (self.pipe.receive() and lives) and self.pipe.waiting() is None:
                raise DeviceLostError(f"the worker ended while it opened the device: {self.end()}")
            time.sleep(0.005)
        frame = self.pipe.waiting()
        assert frame is not None  # noqa: S101 - the loop has seen it
        return check_ready(wire.unpack(frame.packed))

    def waits_for_its_client(self) -> bool:
        """Whether it waits for its client to take bytes, and is neither stopped nor killed."""
        return bool(self.board.paused) and not _is_harmed(self.pid)

    def ask_for_stack(self) -> None:
        """Have it print its threads' stacks, which works while a kernel hangs."""
        with suppress(OSError):
            self._process.send_signal(STACK_SIGNAL)

    def tail(self) -> str:
        """What it printed last."""
        return self._printed.text()

    def stack(self) -> str:
        """The Python stacks in its output: of a crash, or as asked for."""
        found = _STACK.search(self.tail())
        if not found:
            return ""
        stack = found.group(0)
        return stack if _OUTERMOST in stack else f"{stack}\n  {_CUT_SHORT}"

    def last_words(self) -> dict[str, str]:
        """What an error report quotes: its stack, and the end of the output."""
        return {
            "traceback": self.stack()[-TRACEBACK_CHARACTERS:],
            "log": self.tail()[-LOG_CHARACTERS:],
        }

    def kill(self) -> None:
        """Kill it without waiting; :meth:`let_go` does the rest."""
        if self.alive():
            self._process.kill()

    def end(self, *, kill: bool = False) -> str:
        """End it, at once if `kill`, and say how it ended; :meth:`let_go` does the rest."""
        if kill:
            self.kill()
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            if kill:
                return "killed, and still ending"
            self._process.kill()
            code = self._process.wait()
        return describe_exit(code)

    def let_go(self, after: Callable[[], None] | None = None) -> threading.Thread:
        """End it normally without waiting: its socket closes, and it is killed if it stays.

        `after` is called once it has ended, on the thread returned. Only the first call counts.
        """
        if self._ending is not None:
            return self._ending
        self.pipe.close()
        self.up.close()
        self.down.close()

        def end() -> None:
            self.end()
            if after is not None:
                after()
            self.board.close()

        self._ending = threading.Thread(target=end, name="tapml-worker-end", daemon=True)
        self._ending.start()
        return self._ending


def _open_channels(
    on_failure: ExitStack,
) -> tuple[tuple[socket.socket, int, int, int], socket.socket]:
    """Our end of a pipe, descriptors of two rings and of a board; and the pipe's other end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    on_failure.callback(ours.close)
    up = make_memory(RING_BYTES, "up")
    on_failure.callback(os.close, up)
    down = make_memory(RING_BYTES, "down")
    on_failure.callback(os.close, down)
    board = make_board()
    on_failure.callback(os.close, board)
    return (ours, up, down, board), theirs


Start: TypeAlias = "Future[WorkerProcess]"
"""The start of a worker's process, which may be waited for."""


class NoWorkerYetError(Exception):
    """There is no worker for a session before `start` is done."""

    def __init__(self, start: Start) -> None:
        super().__init__("a worker is being started")
        self.start = start


class WorkerPool:
    """Workers for later sessions: one waits, its device open. All are started on one own thread.

    The worker of a session that its client has closed waits for that client's next one, which
    finds its kernels built: at most `KEPT_WORKERS`, each for `KEPT_SECONDS` and of at most
    `KEPT_BYTES`. `allow_native`: workers may load machine code.
    """

    def __init__(self, device: DeviceDescription, *, allow_native: bool) -> None:
        self._device = device
        self._allow_native = allow_native
        self._spare: Start | None = None
        # Set once the spare worker shall start without further delay.
        self._wanted = threading.Event()
        # Sessions come faster than spare workers are ready.
        self._is_late = False
        self._kept: OrderedDict[str, WorkerProcess] = OrderedDict()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._starter = ThreadPoolExecutor(1, "tapml-workers")
        self._template = Template(PROGRAM, device.platform)

    def prepare(self, after_seconds: float = 0.0) -> Start:
        """Start the spare worker if there is none, without waiting for it.

        It starts after some seconds; at once when a session needs it, or if the last one had to be
        waited for.
        """
        with self._lock:
            spare = self._spare
            if spare is None or (
                spare.done() and (spare.exception() is not None or not spare.result().alive())
            ):
                self._wanted = wanted = threading.Event()
                seconds = 0.0 if self._is_late else after_seconds
                spare = self._starter.submit(self._start_after, seconds, wanted)
                self._spare = spare
            if not after_seconds:
                self._wanted.set()
            return spare

    def keep(
        self, identity: str, worker: WorkerProcess, *, still: Callable[[], bool] = lambda: True
    ) -> bool:
        """Keep a worker for the next session of `identity`, once it holds nothing; False if not.

        An identity without a proof is everybody's, and gets only new ones. The worker ends if
        `still`, called from any thread, does not hold once it is ready.
        """
        if not is_proven(identity) or self._closing.is_set():
            return False
        try:
            kept = worker.again()
        except OSError:
            return False
        threading.Thread(
            target=self._keep, args=(identity, kept, still), name="tapml-kept-worker", daemon=True
        ).start()
        return True

    def drop(self, worker: WorkerProcess | None = None) -> None:
        """End a worker if it is kept still; all that are kept if None."""
        with self._lock:
            whose = [identity for identity, kept in self._kept.items() if worker in (None, kept)]
            dropped = [self._kept.pop(identity) for identity in whose]
        for each in dropped:
            each.let_go()

    def _keep(self, identity: str, worker: WorkerProcess, still: Callable[[], bool]) -> None:
        try:
            worker.wait_until_open(_REST_SECONDS)
            fits = _resident_bytes(worker.pid) <= KEPT_BYTES
        except TapmlError:
            fits = False
        leaves = [worker]
        with self._lock:
            if fits and still() and not self._closing.is_set():
                leaves = [former] if (former := self._kept.pop(identity, None)) else []
                self._kept[identity] = worker
                if len(self._kept) > KEPT_WORKERS:
                    leaves.append(self._kept.popitem(last=False)[1])
        for each in leaves:
            each.let_go()
        if worker not in leaves:
            until = time.monotonic() + KEPT_SECONDS
            while self._kept.get(identity) is worker and time.monotonic() < until:
                self._closing.wait(_LOOK_SECONDS)
            self.drop(worker)

    def take(self, identity: str = "", waited: Start | None = None) -> WorkerProcess:
        """A worker for a session, without waiting: the one kept for its identity, or the spare one.

        A worker that has died or was stopped is not taken. Raises NoWorkerYetError if none is left,
        and, once a start has been waited for, what kept that worker from starting.
        """
        own = None if waited is None else waited.result()
        for worker in self._waiting(identity, again=own is not None):
            # One started for this session says there how it has ended: the next would do the same.
            if worker is own or (worker.alive() and not _is_harmed(worker.pid)):
                return worker
            worker.let_go()
        raise NoWorkerYetError(self.prepare())

    def close(self) -> None:
        """End the spare worker and the kept ones."""
        self._closing.set()
        self.drop()
        self._wanted.set()
        # The next worker's start may be waiting for it.
        self._template.stop()
        self._starter.submit(self._end).result()
        self._starter.shutdown(wait=False)

    def _end(self) -> None:
        if (spare := self._take_spare()) is not None:
            spare.pipe.close()
            spare.end(kill=True)
        self._template.close()

    def _waiting(self, identity: str, *, again: bool) -> Iterator[WorkerProcess]:
        with self._lock:
            kept = self._kept.pop(identity, None)
        if kept is not None:
            yield kept
        if (spare := self._take_spare(again=again)) is not None:
            yield spare

    def _take_spare(self, *, again: bool = False) -> WorkerProcess | None:
        with self._lock:
            spare = self._spare
            is_there = spare is not None and spare.done()
            self._is_late = again or not is_there
            if spare is None or not is_there:
                return None
            self._spare = None
        # That an earlier start failed says nothing of this one: it may have been short of memory.
        return spare.result() if spare.exception() is None else None

    def _start_after(self, seconds: float, wanted: threading.Event) -> WorkerProcess:
        wanted.wait(seconds)
        if self._closing.is_set():
            raise SetupError("the server was closed before its next worker was started")
        return self._start()

    def _start(self) -> WorkerProcess:
        start = partial(
            WorkerProcess, self._device, allow_native=self._allow_native, template=self._template
        )
        try:
            return start()
        except TimeoutError:
            # The template has stopped: it may take the request yet, so these have other channels.
            return start()


def check_ready(header: wire.Header) -> DeviceDescription:
    """The device of a worker's first message; raises what kept it from opening it."""
    if header.get("type") == "failed":
        error: TapmlError = failure_from_wire(header.get("error"))
        raise error
    return from_plain(header.get("device"))


def _resident_bytes(pid: int) -> int:
    """The memory that a process holds; 0 if unknown."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * mmap.PAGESIZE
    return 0


def _is_harmed(pid: int) -> bool:
    """Whether a process was stopped, as by SIGSTOP, or killed; known on Linux only."""
    with suppress(OSError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        # The name before the state is in parentheses and may contain some.
        return stat.rpartition(b")")[2].split()[0] in (b"T", b"t", b"Z", b"X")
    return False
