"""A tracker of this process, on loopback: a child process that ends with this one."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from contextlib import suppress
from typing import Any, Final, Self

from tapml_rpc.child_process import OutputTail, prepared_environment
from tapml_targets.errors import SetupError
from tapml_targets.platforms import browser_platform

_START_SECONDS: Final = 60.0
_END_SECONDS: Final = 3.0
_TAIL_BYTES: Final = 4000
_LOOPBACK: Final = "127.0.0.1"


class OwnTracker:
    """A tracker on free ports of loopback; a context manager, which ends it.

    It has its own process group, so that Ctrl-C reaches only this process. Clients of this process
    connect to `address`; `page` makes a browser a device. Raises SetupError with the tracker's
    output if it does not start.
    """

    address: str
    page: str

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable, "-P", "-m", "tapml_rpc.tracker.process",
                "--bind", f"tcp://{_LOOPBACK}:0", "--websocket", f"ws://{_LOOPBACK}:0",
                "--parent", str(os.getpid()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=prepared_environment(browser_platform()),
            start_new_session=True,
        )  # fmt: skip
        assert self._process.stderr is not None  # noqa: S101 - it is a pipe
        self._printed = OutputTail(self._process.stderr, _TAIL_BYTES)
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
        """End it; a second call does nothing."""
        process = self._process
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._printed.wait(_END_SECONDS)
        for pipe in (process.stdin, process.stdout):
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
        self._process.wait()
        raise SetupError(f"the tracker did not come up; it printed:\n{self._printed.text()}")
