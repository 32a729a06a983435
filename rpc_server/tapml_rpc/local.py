"""A device of this machine, in a worker process that this process starts and minds.

It is the worker of ``tapml rpc serve``. A thread of this process does what a supervisor does for
one session: it starts the worker, watches its deadline, and reports how it ended.
"""

from __future__ import annotations

import atexit
import os
import secrets
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Event
from typing import Final

from tapml_rpc.blobs.messages import BlobRequests
from tapml_rpc.blobs.store import BlobStore
from tapml_rpc.child_process import NOTHING, prepared_environment
from tapml_rpc.device.session_state import EPOCH_BYTES, TOKEN_BYTES
from tapml_rpc.link import Link
from tapml_rpc.session import Session
from tapml_rpc.supervisor.options import SupervisorOptions
from tapml_rpc.supervisor.relay import Company, Relay
from tapml_rpc.supervisor.worker_process import WorkerProcess
from tapml_rpc.transport import Unanswered
from tapml_rpc.watch import POLL_MILLISECONDS, Describe, Watch
from tapml_rpc.welcome import DOWNLOAD_WINDOW, Bounds, Welcome
from tapml_rpc.wire import VERSION
from tapml_rpc.zmtp.stream import Stream
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import TapmlError
from tapml_targets.platforms import DEFAULT_PLATFORM
from tapml_targets.ranking import find_device

_ADDRESS: Final = "this machine"


class LocalWorker(Watch):
    """A worker process of our own, for one session, and the thread that starts and minds it.

    The thread lives as long as the process, which ends with it: when it is closed, when the session
    is lost, and with this process. The worker has its own process group, so that Ctrl-C reaches
    only this process, which then ends the worker in order.
    """

    process: WorkerProcess
    """The worker, once it has been started."""

    def __init__(self, start: Callable[[], WorkerProcess], kernel_deadline: float) -> None:
        super().__init__(secrets.token_bytes(TOKEN_BYTES), lambda error: error)
        self._start = start
        self._kernel_deadline = kernel_deadline
        self._owner = os.getpid()
        self._epoch = secrets.token_bytes(EPOCH_BYTES)
        self._opened = Event()
        self._failure: TapmlError | None = None
        self._device: DeviceDescription
        self._connection: socket.socket
        atexit.register(self.close)
        self.begin()

    def open(self) -> Session:
        """Wait for the device, and open the session. Raises TapmlError if it does not open."""
        try:
            self._opened.wait()
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            welcome = Welcome(
                VERSION,
                frozenset(),
                self._device,
                Bounds(),
                self._epoch,
                self._token,
                data_address="",
            )
            unanswered = Unanswered()
            data = Stream(self._connection, None, unanswered.place)
            return Session(Link(_ADDRESS, welcome, data, unanswered, self._watched))
        except BaseException:
            self.close()
            raise

    def close(self) -> bool:
        """End the process, which is given a moment to end normally; True once it has ended."""
        # A forked child that ends must not take its parent's worker with it.
        return os.getpid() == self._owner and super().close()

    def send_control(self, packed: bytes) -> bool:
        """Take what the supervisor's half says to the client."""
        self._hear(packed)
        return True

    def send_data(
        self,
        packed: bytes,
        parts: Sequence[memoryview | bytes],
        sent: Callable[[], None] | None = None,
    ) -> bool:
        """Nothing is relayed: the worker has the data connection."""
        return False

    def _watched(self, describe: Describe) -> Watch:
        self._describe = describe
        return self

    def _run(self) -> None:
        try:
            self.process = self._start()
            self._device = self.process.wait_until_open(stop=self._stop.is_set)
        except TapmlError as error:
            self._failure = error
        else:
            self._connection, theirs = socket.socketpair()
            self._opened.set()
            self._mind(theirs)
        self._opened.set()
        self._ended.set()
        if hasattr(self, "process"):
            # The worker ends with the thread that started it.
            self.process.let_go().join()
        atexit.unregister(self.close)

    def _mind(self, connection: socket.socket) -> None:
        """Mind the worker until the session is over; `connection` is its end of the data's."""
        bounds = Bounds()
        # For the Libraries that it is about to load.
        blobs = BlobStore(bounds.library_bytes)
        relay = Relay(
            token=self._token,
            identity="",
            epoch=self._epoch,
            channel=self,
            worker=self.process,
            bounds=bounds,
            kernel_deadline=self._kernel_deadline,
            # The client is this process.
            silence_seconds=0.0,
            download_credit=DOWNLOAD_WINDOW,
            blobs=BlobRequests(blobs, "", bounds.library_bytes),
            company=Company(),
        )
        relay.connect(connection, b"")
        poll = select.poll()
        for source in (relay, self._waker):
            poll.register(source, select.POLLIN)
        while not self._stop.is_set() and not relay.ended:
            poll.poll(POLL_MILLISECONDS)
            self._waker.drain()
            while self._outbox:
                relay.control(self._outbox.popleft())
            relay.guarded(relay.readable)
            relay.guarded(partial(relay.check, time.monotonic()))
            self.pong = {"sessions": 1, "device_bytes": relay.device_bytes}
        relay.end("closed by the client")
        blobs.close()
        if self.lost is None:
            self._lose(f"the worker of this session has ended: {relay.ended}")


def open_local(
    device: str | DeviceDescription = DEFAULT_PLATFORM,
    *,
    dtype: str = "float32",
    kernel_deadline: float | None = None,
    environ: Mapping[str, str] = NOTHING,
    prefix: Sequence[str] = (),
    limits: str = "",
) -> Session:
    """Start a worker for a device of this machine and open a session with it.

    Parameters
    ----------
    device
        ``"opencl"`` for the platform's best device, ``"opencl:1"`` for that one, or a description
        from :mod:`tapml_targets.ranking`.
    dtype
        What the kernels compute in; the best device is ranked for it.
    kernel_deadline
        Seconds one command may take; a server's default if None.
    environ
        Variables the worker has beside this process's. If there are any, a `device` given as text
        is looked up by the worker: these variables may decide which devices there are.
    prefix
        Words before the worker's command, such as a program that starts what it watches.
    limits
        A profile with whose limits the device is opened, or its file; empty for its own.

    Raises
    ------
    InputError
        If the platform does not exist; the known ones are listed.
    NoSuchDeviceError
        If the platform has no such device here.
    SetupError
        If the worker does not start.
    """
    if isinstance(device, str) and environ:
        spec = device
    else:
        description = find_device(device, dtype) if isinstance(device, str) else device
        spec = f"{description.platform}:{description.index}"
    return start_local(
        spec,
        kernel_deadline=kernel_deadline,
        environ=environ,
        prefix=prefix,
        limits=limits,
    ).open()


def start_local(
    spec: str,
    *,
    kernel_deadline: float | None = None,
    environ: Mapping[str, str] = NOTHING,
    prefix: Sequence[str] = (),
    limits: str = "",
) -> LocalWorker:
    """Start a worker for a device of this machine without waiting for it.

    `spec`, such as ``opencl:1``, must be a device that is known to work: it is not tried in a child
    process first. The other arguments are those of :func:`open_local`.
    """
    start = partial(
        WorkerProcess,
        spec,
        # It runs as this user and serves this process: it may load what this process may.
        allow_native=True,
        environment=prepared_environment(spec.partition(":")[0], environ),
        limits=limits,
        prefix=prefix,
    )
    deadline = SupervisorOptions.kernel_deadline if kernel_deadline is None else kernel_deadline
    return LocalWorker(start, deadline)
