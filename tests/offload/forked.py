"""The ``tapml`` command in forks of a process that has everything imported: many runs, one start.

Each run is a process of its own, from its first line to its exit or its kill.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tapml_targets.failpoints import VARIABLE
from tests.offload.commands import LIMIT_SECONDS, Ended
from tests.offload.fork_server import CONTEXT, be_tapml


@dataclass(frozen=True)
class Forked:
    """A command that runs."""

    process: ForkServerProcess
    errors: Path

    def go_on(self) -> None:
        """Let it run again after it stopped itself."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def interrupt(self) -> None:
        """As Ctrl-C does."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGINT)

    def stops(self, seconds: float = LIMIT_SECONDS) -> bool:
        """Wait until it stands still, as ``TAPML_FAULT=stop@...`` asks it to; False if it ends."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        deadline = time.monotonic() + seconds
        while self.process.is_alive():
            with suppress(FileNotFoundError):
                if stat.read_text().rpartition(")")[2].split()[0] == "T":
                    return True
            assert time.monotonic() < deadline, "it has not stopped in time"
            time.sleep(0.02)
        return False

    def wait_until_stopped(self, seconds: float = LIMIT_SECONDS) -> None:
        """Wait until it stands still; it must not end before."""
        stops = self.stops(seconds)
        assert stops, f"it ended: {self.errors.read_text(errors='replace')}"

    def kill(self) -> None:
        """End it with SIGKILL, and wait until it has."""
        self.process.kill()
        self.process.join()

    def ended(self, seconds: float = LIMIT_SECONDS) -> Ended | None:
        """How it ended; None if it still runs after so long."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            return None
        return Ended(self.process.exitcode, "", self.errors.read_text(errors="replace"))


@contextmanager
def forked(
    *arguments: str | Path,
    cache: Path,
    errors: Path,
    fault: str = "",
    inside: str = "",
    **environ: str,
) -> Iterator[Forked]:
    """A command that runs with its messages in a file; what is left of it is killed.

    Parameters
    ----------
    fault
        What ``TAPML_FAULT`` asks for.
    inside
        ``/proc/PID`` of a process whose file systems it sees.
    environ
        Variables it has beside this process's.
    """
    environment = {**os.environ, **environ, "TAPML_CACHE_DIR": str(cache), VARIABLE: fault}
    process = CONTEXT.Process(
        target=_run,
        args=([str(each) for each in arguments], environment, errors, inside),
        daemon=False,
    )
    process.start()
    try:
        yield Forked(process, errors)
    finally:
        if process.is_alive():
            process.kill()
        process.join()


def run_forked(
    *arguments: str | Path,
    cache: Path,
    errors: Path,
    fault: str = "",
    inside: str = "",
    **environ: str,
) -> Ended:
    """Run a command to its end."""
    with forked(
        *arguments, cache=cache, errors=errors, fault=fault, inside=inside, **environ
    ) as running:
        ended = running.ended()
    assert ended is not None, f"{arguments} still ran after {LIMIT_SECONDS} s"
    return ended


def timed(*arguments: str | Path, cache: Path, errors: Path, fault: str = "") -> float:
    """Run a command, which passes; how many seconds it took."""
    started = time.monotonic()
    ended = run_forked(*arguments, cache=cache, errors=errors, fault=fault)
    assert ended.exit_code == 0, ended.errors
    return time.monotonic() - started


def _run(arguments: list[str], environment: dict[str, str], errors: Path, inside: str) -> None:
    descriptor = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    if inside:
        _join(inside)
    be_tapml(arguments, environment, descriptor, descriptor)


def _join(process: str) -> None:
    """See the file systems that a process has mounted for itself; this process has one thread."""
    libc, here = ctypes.CDLL(None, use_errno=True), Path.cwd()
    spaces = [os.open(f"{process}/ns/{kind}", os.O_RDONLY) for kind in ("user", "mnt")]
    for space in spaces:
        if libc.setns(space, 0):
            raise OSError(ctypes.get_errno(), f"cannot join {process}")
        os.close(space)
    os.chdir(here)
