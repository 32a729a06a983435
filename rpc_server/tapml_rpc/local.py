"""A private server process for a device of this machine."""

from __future__ import annotations

import atexit
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import tapml_rpc
import tapml_targets
from tapml_rpc.options import LEASE_VARIABLE
from tapml_rpc.output_tail import OutputTail
from tapml_rpc.session import Session
from tapml_targets.driver import DeviceDescription
from tapml_targets.driver_discovery import driver_discovery
from tapml_targets.errors import DeviceLostError, SetupError, TapmlError
from tapml_targets.platforms import DEFAULT_PLATFORM
from tapml_targets.ranking import find_device

START_SECONDS: Final = 60.0
_END_SECONDS: Final = 3.0
_TAIL_BYTES: Final = 16 << 10
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class LocalServer:
    """A child process that serves one device, ended by :meth:`close` or with this process.

    It has its own process group, so that Ctrl-C reaches only this process, which then ends the
    server in order.

    Parameters
    ----------
    spec
        ``opencl:1``; ``opencl`` for the platform's best device.
    arguments
        More words of its command line.
    start_seconds
        How long it may take to start.
    environ
        Variables it has beside this process's.
    wait
        Whether to wait until it is up; else :meth:`ready` does.

    Raises
    ------
    NoSuchDeviceError
        If there is no such device.
    SetupError
        If it does not start within `start_seconds`; the message holds its output.
    """

    address: str
    """Its address, once it is up."""

    lease: str
    """The secret in its client's hello.

    Every user of this machine can reach loopback, and the server may do whatever this user may. So
    it serves only those to whom this process gives the lease.
    """

    def __init__(
        self,
        spec: str,
        arguments: tuple[str, ...] = (),
        *,
        start_seconds: float = START_SECONDS,
        environ: Mapping[str, str] = _NOTHING,
        prefix: Sequence[str] = (),
        wait: bool = True,
    ) -> None:
        command = [
            *prefix,
            sys.executable,
            # The current folder must not influence what is imported.
            "-P",
            "-m",
            "tapml_rpc.server",
            "--device",
            spec,
            "--parent",
            str(os.getpid()),
            *arguments,
        ]
        self._owner = os.getpid()
        # In the environment, which other users cannot read; they can read a command line.
        self.lease = secrets.token_urlsafe()
        self._deadline = time.monotonic() + start_seconds
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=prepared_environment(
                spec.partition(":")[0], {**environ, LEASE_VARIABLE: self.lease}
            ),
            start_new_session=True,
        )
        assert self.process.stderr is not None  # noqa: S101 - it is a pipe
        self._printed = OutputTail(self.process.stderr, _TAIL_BYTES)
        atexit.register(self.close)
        if wait:
            self.ready()

    def ready(self) -> None:
        """Wait until it is up; it is ended if it does not start."""
        try:
            line = self._read_line(self._deadline)
            self.address = str(line["address"])
        except BaseException:
            self.close()
            raise

    def exit_report(self, wait_seconds: float) -> str | None:
        """How the process ended and its last output; None while it runs."""
        try:
            code = self.process.wait(wait_seconds) if wait_seconds else self.process.poll()
        except subprocess.TimeoutExpired:
            return None
        if code is None:
            return None
        tail = self._printed.text()
        return describe_exit(code) + (f"; it printed last:\n{tail}" if tail else "")

    def busy(self) -> bool:
        """Whether the process or a compiler it started runs, or waits for a processor or a disk.

        Known only on Linux, otherwise False.
        """
        return is_busy(self.process.pid)

    def close(self) -> None:
        """End the process; it is given a moment to end normally."""
        if os.getpid() != self._owner:
            # A forked child that ends must not take its parent's server with it.
            return
        atexit.unregister(self.close)
        process = self.process
        if process.stdin is not None:
            process.stdin.close()
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._printed.wait(_END_SECONDS)
        if process.stdout is not None:
            process.stdout.close()

    def _read_line(self, deadline: float) -> dict[str, Any]:
        assert self.process.stdout is not None  # noqa: S101 - it is a pipe
        descriptor = self.process.stdout.fileno()
        data = b""
        while not data.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0:
                said = self._printed.text()
                raise SetupError(f"the device server did not come up in time; it printed:\n{said}")
            if select.select([descriptor], [], [], min(left, 0.5))[0]:
                piece = os.read(descriptor, 65536)
                if not piece:
                    raise _start_failure(self.process.wait(), self.exit_report(5) or "")
                data += piece
        line: dict[str, Any] = json.loads(data)
        return line


def is_busy(pid: int) -> bool:
    """Whether a thread of a process runs, or waits for a processor or a disk; Linux only.

    Includes the process's children: PoCL's linker is a process.
    """
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            # The name before the state is in parentheses and may contain some.
            if (task / "stat").read_bytes().rpartition(b")")[2].split()[0] in (b"R", b"D"):
                return True
            if any(is_busy(int(child)) for child in (task / "children").read_bytes().split()):
                return True
    return False


class StartingDevice:
    """A server that is starting; made by :func:`start_local`."""

    def __init__(self, server: LocalServer, start_seconds: float) -> None:
        self._server = server
        self._start_seconds = start_seconds

    def open(self) -> Session:
        """Wait for the server and open a session, which owns it from then on.

        Raises
        ------
        NoSuchDeviceError
            If the server finds no such device.
        SetupError
            If it does not come up.
        """
        # A supervisor without ZeroMQ needs this module's other half.
        from tapml_rpc.zeromq.opening import open_zeromq

        server = self._server
        try:
            server.ready()
            link = open_zeromq(
                server.address,
                timeout=self._start_seconds,
                exit_report=server.exit_report,
                busy=server.busy,
                lease=server.lease,
            )
        except BaseException:
            server.close()
            raise
        return Session(link, on_close=server.close)

    def close(self) -> None:
        """End the server, whether it is up or not; no effect if it has ended."""
        self._server.close()


def open_local(
    device: str | DeviceDescription = DEFAULT_PLATFORM,
    *,
    dtype: str = "float32",
    kernel_deadline: float | None = None,
    start_seconds: float = START_SECONDS,
    environ: Mapping[str, str] = _NOTHING,
    prefix: Sequence[str] = (),
    limits: str = "",
) -> Session:
    """Start a server for a device of this machine and open a session with it.

    Parameters
    ----------
    device
        ``"opencl"`` for the platform's best device, ``"opencl:1"`` for that one, or a description
        from :mod:`tapml_targets.ranking`.
    dtype
        What the kernels compute in; the best device is ranked for it.
    kernel_deadline
        Seconds one command may take; the server's default if None.
    start_seconds
        How long the server may take to open the device.
    environ
        Variables the server has beside this process's. If there are any, a `device` given as text
        is looked up by the server: these variables may decide which devices there are.
    prefix
        Words before the server's command, such as a program that starts what it watches.
    limits
        A profile with whose limits the device is opened, or its file; empty for its own.

    Raises
    ------
    InputError
        If the platform does not exist; the known ones are listed.
    NoSuchDeviceError
        If the platform has no such device here.
    SetupError
        If the server does not start.
    """
    if isinstance(device, str) and environ:
        spec = device
    else:
        description = find_device(device, dtype) if isinstance(device, str) else device
        spec = f"{description.platform}:{description.index}"
    return start_local(
        spec,
        kernel_deadline=kernel_deadline,
        start_seconds=start_seconds,
        environ=environ,
        prefix=prefix,
        limits=limits,
    ).open()


def start_local(
    spec: str,
    *,
    kernel_deadline: float | None = None,
    start_seconds: float = START_SECONDS,
    environ: Mapping[str, str] = _NOTHING,
    prefix: Sequence[str] = (),
    limits: str = "",
) -> StartingDevice:
    """Start a server for a device of this machine without waiting for it.

    `spec`, such as ``opencl:1``, must be a device that is known to work: it is not tried in a child
    process first. The other arguments are those of :func:`open_local`.
    """
    # The server runs as this user and serves this process: it may load what this process may.
    arguments: tuple[str, ...] = ("--allow-shared-libraries",)
    if kernel_deadline is not None:
        arguments += ("--kernel-deadline", str(kernel_deadline))
    if limits:
        arguments += ("--limits", limits)
    server = LocalServer(
        spec, arguments, start_seconds=start_seconds, environ=environ, prefix=prefix, wait=False
    )
    return StartingDevice(server, start_seconds)


def prepared_environment(platform: str, additions: Mapping[str, str]) -> dict[str, str]:
    """The server's environment: the path to our packages, and what the platform's loader needs."""
    roots = [str(Path(path).parent) for path in (*tapml_rpc.__path__, *tapml_targets.__path__)]
    environment = dict(os.environ) | dict(additions)
    known = environment.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = os.pathsep.join([*roots, known] if known else roots)
    # A loader reads its paths once, at the start of a process: platforms set them beforehand.
    return driver_discovery(platform).prepare_environment(environment)


def describe_exit(code: int) -> str:
    """How a process ended, by its exit code as Python gives it."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def _start_failure(code: int, report: str) -> TapmlError:
    from tapml_targets.errors import EXIT_NO_DEVICE, NoSuchDeviceError

    if code == EXIT_NO_DEVICE:
        return NoSuchDeviceError(f"the device server found no such device: {report}")
    if code < 0:
        return DeviceLostError(f"the device server died while it opened the device: {report}")
    return SetupError(f"the device server did not start: {report}")
