"""The server under test: started like any server, and measured from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from scripts.processes import family, own_bytes

_COMMAND: Final = "import sys; from tapml.cli.start import main; sys.exit(main())"
_SERVE: Final = ("-c", _COMMAND, "rpc", "serve")
_END_SECONDS: Final = 10


@dataclass(frozen=True)
class Weight:
    """Resources of a server and its children.

    Attributes
    ----------
    processes, descriptors
        How many.
    resident_bytes
        Memory of all of them without pages of files; shared memory counts once.
    """

    processes: int
    descriptors: int
    resident_bytes: int


class ServerUnderTest:
    """A server in a separate process.

    Parameters
    ----------
    device
        As ``--device`` takes it.
    arguments
        More of its options.
    prefix
        Before the command: what runs it somewhere else.

    Attributes
    ----------
    line
        What it announced.
    """

    def __init__(self, device: str, *arguments: str, prefix: Sequence[str] = ()) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self.process = subprocess.Popen(
            [*prefix, sys.executable, *_SERVE, "--device", device, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        announcement = self.process.stdout.readline()
        if not announcement:
            self.process.wait()
            raise RuntimeError(f"the server did not start: {self.log()}")
        self.line: dict[str, Any] = json.loads(announcement)

    def __enter__(self) -> ServerUnderTest:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.terminate()
        try:
            self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()

    def log(self) -> str:
        """Its standard error so far."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def own_bytes(self) -> int:
        """Resident bytes of the server's process, without its children's."""
        return own_bytes(self.process.pid)

    def weigh(self) -> Weight:
        """Look at the server's processes as the system sees them."""
        processes = descriptors = resident = 0
        for pid in family(self.process.pid):
            # One may have just ended.
            with suppress(OSError):
                descriptors += sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
                resident += own_bytes(pid)
                processes += 1
        return Weight(processes, descriptors, resident)
