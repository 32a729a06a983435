"""``tapml rpc serve`` and what leads to it: a device as a session elsewhere meets it."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scripts.processes import workers
from tests.rpc.announced import AnnouncedProcess


@dataclass(frozen=True)
class Road:
    """A way to a device: what stands after ``--device``, and what the environment adds."""

    spec: str
    environment: Mapping[str, str] = field(default_factory=dict)


class Served(AnnouncedProcess):
    """A supervisor.

    Parameters
    ----------
    config
        Its user's folder of keys, lists and certificates.
    """

    def __init__(self, *arguments: str, device: str, config: Path) -> None:
        self._arguments, self._device, self._config = arguments, device, config
        super().__init__(
            *("tapml.cli.main", "rpc", "serve"),
            *("--device", device, *arguments),
            in_order=True,
            environ={"TAPML_CONFIG_DIR": str(config)},
        )

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

    def workers(self) -> list[int]:
        """The processes that drive the device."""
        return workers(self.process.pid)

    def kill_workers(self) -> None:
        """End every worker without warning, the one that waits for the next session as well."""
        for worker in self.workers():
            os.kill(worker, signal.SIGKILL)
