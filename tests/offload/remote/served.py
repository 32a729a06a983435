"""``tapml rpc serve`` and what leads to it: a device as a session elsewhere meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any


@dataclass(frozen=True)
class Road:
    """A way to a device: what stands after ``--device``, and what the environment adds."""

    spec: str
    environment: Mapping[str, str] = field(default_factory=dict)


class Served:
    """A supervisor with its announcement read.

    Parameters
    ----------
    config
        Its user's folder of keys, lists and certificates.
    """

    def __init__(self, *arguments: str, device: str, config: Path) -> None:
        self._arguments, self._device, self._config = arguments, device, config
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tapml_rpc.supervisor.serve", "--device", device, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "TAPML_CONFIG_DIR": str(config)},
        )
        assert self.process.stdout is not None
        announcement = self.process.stdout.readline()
        if not announcement:
            raise AssertionError(self.process.communicate()[1].decode())
        self.line: dict[str, Any] = json.loads(announcement)

    def __enter__(self) -> Served:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.communicate(timeout=30)
        finally:
            self.process.kill()

    def road(self, binding: str) -> Road:
        """The way over ``tcp`` or ``ws``."""
        return Road(self.line["address" if binding == "tcp" else "websocket"])

    def again(self) -> Served:
        """Another life at the same addresses."""
        bindings = ["--bind", self.line["address"]]
        if "websocket" in self.line:
            bindings += ["--websocket", self.line["websocket"]]
        others = self._arguments[: self._arguments.index("--bind")]
        return Served(*others, *bindings, device=self._device, config=self._config)

    def kill(self) -> None:
        """End it without warning."""
        self.process.kill()
        self.process.wait()

    def workers(self) -> list[int]:
        """The processes that drive the device."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [
            int(child)
            for child in children
            if b"supervisor.worker" in Path(f"/proc/{child}/cmdline").read_bytes()
        ]

    def kill_workers(self) -> None:
        """End every worker without warning, the one that waits for the next session as well."""
        for worker in self.workers():
            os.kill(worker, signal.SIGKILL)
