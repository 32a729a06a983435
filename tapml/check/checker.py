"""A platform's checker as a device: a separate server process, and its log.

Oclgrind's behaviour determines how it is used. It tracks written bytes by buffer *number* and
does not reset them when a buffer is freed, so no buffer is freed and the process is restarted
instead. It treats a partial write to a buffer as starting at its first byte, so a tensor that is
sent in pieces is assembled in a separate buffer and copied at once. To find races it keeps 48 bytes
for every byte of every buffer, and scans them after each kernel, so memory is limited.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_rpc.remote import RemoteBuffer
from tapml_targets.check_messages import Message
from tapml_targets.checker import CHECKS, PlatformChecker, checker_of, command_prefix
from tapml_targets.child_probe import LIST_SECONDS, ask_child
from tapml_targets.errors import NoSuchDeviceError, SetupError
from tapml_targets.platforms import load_driver_module

COMMAND_SECONDS: Final = 120.0
"""Time limit for simulating one kernel."""
_KEPT_BYTES: Final = 8 << 20
_KEPT_BUFFERS: Final = 1024
_LOG_BYTES: Final = 64 << 20
# Larger writes are sent in pieces.
_WHOLE_BYTES: Final = 128 << 10


class Checker:
    """A device that checks kernels. Made by :func:`open_checker`.

    `session` is the device; :meth:`renew` replaces it. `tool` is the platform's ``checker.py``.
    """

    def __init__(
        self,
        platform: str,
        library: Path,
        folder: Path,
        command_seconds: float,
        device: int | None = None,
    ) -> None:
        self.platform = platform
        self.tool: PlatformChecker = checker_of(platform)
        self._library = library
        self._folder = folder
        self._command_seconds = command_seconds
        self._device = device
        self._lives = 0
        self._spec = ""
        self._start()

    def close(self) -> None:
        """Stop the simulator's process."""
        self.session.close()

    def renew(self) -> None:
        """Restart the process; all its buffers and Libraries are gone."""
        self.close()
        self._start()

    def make_room(self, nbytes: int) -> None:
        """Restart the process if it has too little space for `nbytes` more, or for its log.

        Nothing of it may be in use.
        """
        crowded = self._held_bytes + nbytes > _KEPT_BYTES or self._buffers > _KEPT_BUFFERS
        # A fault in every element takes space in the log that the next test may need.
        if (self._buffers and crowded) or self._messages * 4 > self.tool.MAX_MESSAGES:
            self.renew()

    def allocate(self, nbytes: int) -> tuple[RemoteBuffer, int]:
        """Allocate exactly `nbytes` unwritten bytes; return the buffer and its number."""
        buffer = self.session.allocate(nbytes)
        self._held.append(buffer)
        self._buffers += 1
        self._held_bytes += nbytes
        return buffer, self._buffers

    def place(self, values: NDArray[Any]) -> tuple[RemoteBuffer, int]:
        """Allocate a buffer with exactly `values`; return it and its number."""
        data = np.asarray(values, order="C")
        buffer, number = self.allocate(data.nbytes)
        if data.nbytes <= _WHOLE_BYTES:
            self.session.write(buffer, data)
        else:
            staging, _ = self.allocate(data.nbytes)
            self.session.write(staging, data)
            self.session.copy(staging, buffer)
        return buffer, number

    def messages(self) -> tuple[list[Message], bool]:
        """Messages since the last call, and whether the simulator stopped logging.

        If it did, the process is restarted before the next test, so that no message is lost.
        """
        with self._log.open("rb") as file:
            file.seek(self._position)
            data = file.read(_LOG_BYTES)
        self._position += len(data)
        text = data.decode(errors="replace")
        found = list(self.tool.read_messages(text))
        self._messages += len(found)
        return found, self.tool.is_silenced(text) or len(data) == _LOG_BYTES

    def _start(self) -> None:
        self._lives += 1
        # The simulator truncates its log when a context is created: each process has its own log.
        self._log = self._folder / f"log-{self._lives}.txt"
        self._log.touch()
        self._position = 0
        self._messages = 0
        self._buffers = 0
        self._held_bytes = 0
        self._held: list[RemoteBuffer] = []
        environ = {**self.tool.environment(self._library, self._log), CHECKS: "1"}
        if not self._spec:
            self._spec = self._find_device(environ)
        self.session: Session = open_local(
            self._spec,
            kernel_deadline=self._command_seconds,
            environ=environ,
            prefix=command_prefix(self.tool, self._library, self._log),
        )
        if self.session.device.device_type != "checker":
            name = self.session.device.name
            self.session.close()
            raise SetupError(f"expected {self.tool.NAME} from {self._library}, got {name}")

    def _find_device(self, environ: dict[str, str]) -> str:
        """The checker in the list of the platform's devices, as ``opencl:0``."""
        answer, problem = ask_child(
            ["list", self.platform], LIST_SECONDS, dict(os.environ) | environ
        )
        if answer is None or "problem" in answer:
            raise SetupError(
                f"{self.tool.NAME} ({self._library}) does not start: "
                f"{problem or (answer or {}).get('problem')}"
            )
        found = [
            device["index"] for device in answer["devices"] if device["device_type"] == "checker"
        ]
        if self._device in found:
            return f"{self.platform}:{self._device}"
        if found and (self._device is None or not self.tool.ON_DEVICES):
            return f"{self.platform}:{found[0]}"
        if not answer["devices"]:
            remedy = getattr(load_driver_module(self.platform), "REMEDY", "")
            raise NoSuchDeviceError(
                f"this machine has no {self.platform} device to check on; {remedy}"
            )
        raise SetupError(
            f"no {self.platform} device is {self.tool.NAME}, though the driver is {self._library}"
        )


@contextmanager
def open_checker(
    platform: str, *, command_seconds: float = COMMAND_SECONDS, device: int | None = None
) -> Iterator[Checker]:
    """Start a platform's checker in a separate process, which ends with the block.

    Parameters
    ----------
    platform
        Whose kernels are checked.
    command_seconds
        Time limit for simulating one kernel, after which the process is killed.
    device
        Index of the device to check on, where the checker has it or works on the platform's own;
        else, and for None, it is the checker's first.

    Raises
    ------
    InputError
        If the platform has no checker.
    NoSuchDeviceError
        If it checks on the platform's own devices, and there are none.
    SetupError
        If the checker or the platform's package is not installed, or does not start.
    """
    library = checker_of(platform).find_checker()
    folder = Path(tempfile.mkdtemp(prefix="tapml-check-"))
    try:
        checker = Checker(platform, library, folder, command_seconds, device)
        try:
            yield checker
        finally:
            checker.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
