"""Oclgrind as a device: a server process of its own, and the log that it writes.

The simulator has habits that decide how it is used. It remembers per buffer *number* which bytes
were written, and forgets neither when a buffer is freed: so none is freed, and the process is
renewed instead. It takes a write to a part of a buffer for the whole buffer's first: so a tensor
that travels in pieces is put together beside its place and copied there at once. It keeps 48 bytes
for every byte of every buffer to find races, and walks through them after each kernel: so memory
is bounded.
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

from tapml.check.log import Message, is_silenced, read_messages
from tapml.check.oclgrind import MAX_MESSAGES, environment, find_oclgrind
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_rpc.remote import RemoteBuffer
from tapml_targets.child_probe import LIST_SECONDS, ask_child
from tapml_targets.errors import SetupError

COMMAND_SECONDS: Final = 120.0
"""How long one kernel may be simulated."""
_KEPT_BYTES: Final = 8 << 20
_KEPT_BUFFERS: Final = 1024
_LOG_BYTES: Final = 64 << 20
# Larger writes travel in pieces.
_WHOLE_BYTES: Final = 128 << 10


class Checker:
    """A device that checks what kernels do. Made by :func:`open_checker`.

    Attributes
    ----------
    session
        The device; another one after :meth:`renew`.
    """

    def __init__(self, library: Path, folder: Path, command_seconds: float) -> None:
        self._library = library
        self._folder = folder
        self._command_seconds = command_seconds
        self._lives = 0
        self._spec = ""
        self._start()

    def close(self) -> None:
        """End the simulator's process."""
        self.session.close()

    def renew(self) -> None:
        """Start a new process in place of this one; every buffer and Library of it is gone."""
        self.close()
        self._start()

    def make_room(self, nbytes: int) -> None:
        """Renew the process if what it holds leaves too little for `nbytes` more, or for its log.

        Nothing of it may be in use.
        """
        crowded = self._held_bytes + nbytes > _KEPT_BYTES or self._buffers > _KEPT_BUFFERS
        # A fault in every element takes room of the log that the next test may need.
        if (self._buffers and crowded) or self._messages * 4 > MAX_MESSAGES:
            self.renew()

    def allocate(self, nbytes: int) -> tuple[RemoteBuffer, int]:
        """Memory of exactly `nbytes` bytes that nothing was written to, and its number."""
        buffer = self.session.allocate(nbytes)
        self._held.append(buffer)
        self._buffers += 1
        self._held_bytes += nbytes
        return buffer, self._buffers

    def place(self, values: NDArray[Any]) -> tuple[RemoteBuffer, int]:
        """Memory that holds exactly `values`, and its number."""
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
        """What was logged since the last call, and whether the simulator fell silent.

        What it fell silent on is not lost without a word: the process is renewed before the next
        test.
        """
        with self._log.open("rb") as file:
            file.seek(self._position)
            data = file.read(_LOG_BYTES)
        self._position += len(data)
        text = data.decode(errors="replace")
        found = list(read_messages(text))
        self._messages += len(found)
        return found, is_silenced(text) or len(data) == _LOG_BYTES

    def _start(self) -> None:
        self._lives += 1
        # The simulator empties its log when a context is made: each life has one of its own.
        self._log = self._folder / f"log-{self._lives}.txt"
        self._log.touch()
        self._position = 0
        self._messages = 0
        self._buffers = 0
        self._held_bytes = 0
        self._held: list[RemoteBuffer] = []
        environ = environment(self._library, self._log)
        if not self._spec:
            self._spec = _find_device(environ, self._library)
        self.session: Session = open_local(
            self._spec, kernel_deadline=self._command_seconds, environ=environ
        )
        if self.session.device.device_type != "checker":
            name = self.session.device.name
            self.session.close()
            raise SetupError(f"expected Oclgrind from {self._library}, got {name}")


@contextmanager
def open_checker(*, command_seconds: float = COMMAND_SECONDS) -> Iterator[Checker]:
    """Start Oclgrind in a process of its own, ended with the block.

    Parameters
    ----------
    command_seconds
        How long one kernel may be simulated before the process is ended.

    Raises
    ------
    SetupError
        If Oclgrind or pyopencl is not installed, or does not come up.
    """
    library = find_oclgrind()
    folder = Path(tempfile.mkdtemp(prefix="tapml-check-"))
    try:
        checker = Checker(library, folder, command_seconds)
        try:
            yield checker
        finally:
            checker.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _find_device(environ: dict[str, str], library: Path) -> str:
    """Where the OpenCL loader lists Oclgrind, as ``opencl:0``."""
    answer, problem = ask_child(["list", "opencl"], LIST_SECONDS, dict(os.environ) | environ)
    if answer is None or "problem" in answer:
        raise SetupError(
            f"Oclgrind ({library}) does not come up: {problem or (answer or {}).get('problem')}"
        )
    for device in answer["devices"]:
        if device.get("device_type") == "checker":
            return f"opencl:{device['index']}"
    raise SetupError(f"the OpenCL loader lists no Oclgrind, though its driver is {library}")
