"""A tracker of this process's own, on loopback: a child process that ends with this one."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections import deque
from contextlib import suppress
from threading import Thread
from typing import Any, Final, Self

from tapml_rpc.local import prepared_environment
from tapml_targets.errors import SetupError

_START_SECONDS: Final = 60.0
_END_SECONDS: Final = 3.0
_TAIL_LINES: Final = 20
_LOOPBACK: Final = "127.0.0.1"


class OwnTracker:
    """A tracker on free ports of loopback; a context manager, which ends it.

    It has a process group of its own, so that Ctrl-C reaches this process alone.

    Attributes
    ----------
    address
        Where clients of this process come.
    page
        Where it serves the page that makes a browser a device.

    Raises
    ------
    SetupError
        If it does not come up; the message holds what it printed.
    """

    address: str
    page: str

    def __init__(self) -> None:
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._process = subprocess.Popen(
            [
                sys.executable, "-P", "-m", "tapml_rpc.tracker.process",
                "--bind", f"tcp://{_LOOPBACK}:0", "--websocket", f"ws://{_LOOPBACK}:0",
                "--parent", str(os.getpid()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=prepared_environment("webgpu", {}),
            start_new_session=True,
        )  # fmt: skip
        self._reader = Thread(target=self._keep_tail, daemon=True)
        self._reader.start()
        try:
            line = self._announcement()
            self.address = str(line["address"])
            self.page = str(line["websocket"]).replace("ws", "http", 1) + "/"
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it; nothing happens the second time."""
        process = self._process
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._reader.join(_END_SECONDS)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _announcement(self) -> dict[str, Any]:
        output = self._process.stdout
        assert output is not None  # noqa: S101 - it is a pipe
        if select.select([output], [], [], _START_SECONDS)[0]:
            # One write of fewer bytes than a pipe takes at once.
            announced = output.readline()
            if announced:
                line: dict[str, Any] = json.loads(announced)
                return line
        self._process.kill()
        self._reader.join(_END_SECONDS)
        raise SetupError("the tracker did not come up; it printed:\n" + "\n".join(self._tail))

    def _keep_tail(self) -> None:
        assert self._process.stderr is not None  # noqa: S101 - it is a pipe
        for line in self._process.stderr:
            self._tail.append(line.decode(errors="replace").rstrip()[:2000])
