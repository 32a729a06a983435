"""The private server of one process: :class:`tapml_rpc.local.LocalServer` starts it.

``tapml rpc serve`` is :mod:`tapml_rpc.supervisor.serve`. Here the main thread serves the control
socket and receives signals, a second one runs the device. The address is printed as one JSON line
on standard output once the device is open; everything else goes to standard error.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import queue
import secrets
import signal
import sys
from dataclasses import replace
from types import FrameType
from typing import Final

import zmq

from tapml_rpc import device_loop, wire
from tapml_rpc.announcement import announce, keep_output
from tapml_rpc.bounds import Bounds
from tapml_rpc.control_loop import ControlLoop
from tapml_rpc.libraries import LibraryStore
from tapml_rpc.options import LEASE_VARIABLE, ServerOptions, add_arguments, options_from
from tapml_rpc.security.bind import bracketed, check_bind
from tapml_rpc.server_session import ServerSession
from tapml_targets.description import to_plain
from tapml_targets.driver import DeviceDescription, Driver
from tapml_targets.errors import SetupError, TapmlError
from tapml_targets.limit_profiles import narrowed
from tapml_targets.platforms import load_driver_module
from tapml_targets.ranking import find_device

EPOCH_BYTES: Final = 8
_END_SECONDS: Final = 1.0
# Drivers that load machine code check this.
_ALLOW_VARIABLE: Final = "TAPML_ALLOW_SHARED_LIBRARIES"


def serve(options: ServerOptions) -> int:
    """Serve a device until a signal, or until the parent is gone. Returns the exit code.

    Raises SetupError if the address cannot be used; NoSuchDeviceError if there is no such device.
    """
    host, port = check_bind(options.bind, secret=False, schemes=("tcp",))
    # Child processes need not know it.
    lease = os.environ.pop(LEASE_VARIABLE, "")
    device = opened_as = find_device(options.device)
    if options.limits:
        # It is announced as it is: who names a profile checks against both.
        opened_as = narrowed(device, options.limits)
    faulthandler.enable()
    stopping = _StopRequest(options.parent)
    bounds = Bounds()
    if options.session_bytes > 0:
        bounds = replace(bounds, session_bytes=options.session_bytes)
    libraries = LibraryStore(
        held_bytes=bounds.held_library_bytes,
        library_bytes=bounds.library_bytes,
        allow_native=options.allow_shared_libraries,
    )
    epoch = secrets.token_bytes(EPOCH_BYTES)
    sessions: dict[bytes, ServerSession] = {}
    # A parent that is stopped for a while comes back; one that ends is noticed as such.
    silence_seconds = 0.0 if options.parent else options.silence_seconds
    shown_host = bracketed(host)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.setsockopt(zmq.IPV6, int(":" in host))
    try:
        loop = device_loop.DeviceLoop(
            context,
            f"tcp://{shown_host}:{options.data_port or '*'}",
            epoch=epoch,
            sessions=sessions,
            bounds=bounds,
            libraries=libraries,
            heartbeats=silence_seconds > 0,
        )
        control = ControlLoop(
            context,
            f"tcp://{shown_host}:{port or '*'}",
            device=device,
            loop=loop,
            sessions=sessions,
            epoch=epoch,
            bounds=bounds,
            silence_seconds=silence_seconds,
            kernel_deadline=options.kernel_deadline,
            lease=lease,
        )
    except zmq.ZMQError as error:
        raise SetupError(f"cannot listen on {options.bind}: {error}") from None
    # Only now: a call that is refused above leaves its process as it was.
    os.environ[_ALLOW_VARIABLE] = str(int(options.allow_shared_libraries))
    opened: queue.SimpleQueue[Driver | Exception] = queue.SimpleQueue()
    thread = device_loop.start(
        loop, lambda: load_driver_module(device.platform).open_device(opened_as), opened.put
    )
    outcome = opened.get()
    if isinstance(outcome, Exception):
        raise outcome
    # What start-up made stays: the garbage collector need not visit it again.
    gc.freeze()
    _announce(control.address, device, epoch)
    control.run(lambda: stopping.asked() or not thread.is_alive(), stopping.wake_fds)
    failed = not thread.is_alive()
    loop.stop.set()
    thread.join(timeout=_END_SECONDS)
    if thread.is_alive():
        # A kernel hangs: nothing can be freed in order any more.
        os._exit(0)
    context.destroy(linger=200)
    return 1 if failed else 0


class _StopRequest:
    """Whether a signal or the parent's end asks the process to stop."""

    def __init__(self, parent: int) -> None:
        self._signalled = False
        self._parent = parent
        # The parent holds the other end of standard input open while it lives.
        self.wake_fds = (0,) if parent else ()
        signal.signal(signal.SIGTERM, self._note)
        signal.signal(signal.SIGINT, self._note)

    def asked(self) -> bool:
        if self._parent and not self._signalled:
            # Both: forked children of the parent may hold the pipe open after its death.
            self._signalled = os.getppid() != self._parent or _at_end_of_input()
        return self._signalled

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True


def _at_end_of_input() -> bool:
    poller = zmq.Poller()
    poller.register(0, zmq.POLLIN)
    return bool(poller.poll(0)) and not os.read(0, 4096)


def _announce(address: str, device: DeviceDescription, epoch: bytes) -> None:
    line = {
        "address": address,
        "device": to_plain(device),
        "epoch": epoch.hex(),
        "pid": os.getpid(),
        "protocol": wire.VERSION,
    }
    announce(line)


def main(arguments: list[str] | None = None) -> int:
    """Entry point of ``python -m tapml_rpc.server``."""
    parser = argparse.ArgumentParser(prog="tapml_rpc.server", description=__doc__)
    add_arguments(parser)
    options = parser.parse_args(arguments)
    keep_output()
    try:
        return serve(options_from(options))
    except TapmlError as error:
        print(f"tapml_rpc.server: {error}", file=sys.stderr, flush=True)
        return error.exit_code


if __name__ == "__main__":
    # A driver's threads may outlive the interpreter; everything of ours is closed by now.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
