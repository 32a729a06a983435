"""The server under test: started as anybody starts it, and weighed from outside."""

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

_COMMAND: Final = "import sys; from tapml.cli.start import main; sys.exit(main())"
_SERVE: Final = ("-c", _COMMAND, "rpc", "serve")
_END_SECONDS: Final = 10


@dataclass(frozen=True)
class Weight:
    """What a server and its children hold.

    Attributes
    ----------
    processes, descriptors
        How many.
    resident_bytes
        Memory of all of them, pages of files left out; one that they share counts once.
    """

    processes: int
    descriptors: int
    resident_bytes: int


class ServerUnderTest:
    """A server in a process of its own.

    Parameters
    ----------
    device
        As ``--device`` takes it.
    module
        Started with ``python -m`` in place of ``tapml rpc serve``; empty for that.
    arguments
        More of its options.
    prefix
        Before the command: what runs it somewhere else.

    Attributes
    ----------
    line
        What it announced.
    """

    def __init__(
        self, device: str, *arguments: str, module: str = "", prefix: Sequence[str] = ()
    ) -> None:
        started = ("-m", module) if module else _SERVE
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self.process = subprocess.Popen(
            [*prefix, sys.executable, *started, "--device", device, *arguments],
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
        """What it has written to standard error so far."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def weigh(self) -> Weight:
        """Look at the server's processes as the system sees them."""
        processes = descriptors = resident = 0
        for pid in family(self.process.pid):
            try:
                descriptors += sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
                memory = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii")
                # Of its files' pages it is charged more when another process lets go of them.
                for kind in ("Pss_Anon:", "Pss_Shmem:"):
                    resident += 1024 * int(memory.partition(f"\n{kind}")[2].split()[0])
            except (OSError, IndexError):
                # It has just ended.
                continue
            processes += 1
        return Weight(processes, descriptors, resident)


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    family = [pid]
    for parent in family:
        # A process, or a thread of it, may end while it is looked at.
        with suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                with suppress(OSError):
                    children = (task / "children").read_text("ascii")
                    family += map(int, children.split())
    return family
