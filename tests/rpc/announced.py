"""A process of ours as a test starts it: ``python -m MODULE``, its announcement read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PATIENCE_SECONDS = 60.0
_ROOT = Path(__file__).parents[2]


class AnnouncedProcess:
    """A process that prints one line of JSON once it serves.

    Parameters
    ----------
    module, arguments
        What runs.
    in_order
        Whether it is asked to end at the end of the block, and waited for; killed else.
    environ
        Variables it has beside this process's.

    Attributes
    ----------
    line
        What it announced.
    address
        Where it listens.
    errors
        What it has written to standard error, once it has ended.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        in_order: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._in_order = in_order
        self.errors = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(environ or {})},
            cwd=_ROOT,
        )
        assert self.process.stdout is not None
        self.announcement = self.process.stdout.readline()
        if not self.announcement:
            raise AssertionError(self.process.communicate()[1].decode())
        self.line: dict[str, Any] = json.loads(self.announcement)
        self.address: str = self.line["address"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._in_order:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
        else:
            self.signal(signal.SIGKILL)
        try:
            _, self.errors = self.process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it without warning."""
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)
