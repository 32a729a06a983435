"""The real ``tapml`` command, in a process of its own or, to save even its fork, in this one."""

from __future__ import annotations

import contextlib
import io
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TextIO

import pytest

from tapml.cli.main import main
from tests.offload.fork_server import CONTEXT, STACKS_SIGNAL, TAPML, be_tapml

LIMIT_SECONDS = 240.0
# How long a command that hangs has to write the stacks of its threads.
STACKS_SECONDS = 5.0


@dataclass(frozen=True)
class Ended:
    """How a command ended and what it wrote."""

    exit_code: int
    output: str
    errors: str

    @property
    def error_lines(self) -> list[str]:
        """What the command itself said: the lines that begin with its name."""
        return [line for line in self.errors.splitlines() if line.startswith("tapml")]


def run_here(*arguments: str | Path, cache: Path) -> Ended:
    """Run a command through its entry point, with its compiled code in `cache`."""
    output, errors = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        patch.setenv("TAPML_CACHE_DIR", str(cache))
        try:
            exit_code = main([str(each) for each in arguments])
        except SystemExit as exit_:
            exit_code = int(exit_.code or 0)
    return Ended(exit_code, output.getvalue(), errors.getvalue())


class Started:
    """A command that runs, with its output and its messages in pipes: a fork of a warm Python.

    What a test needs of `subprocess.Popen`, under the same names.
    """

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], entry: str = TAPML
    ) -> None:
        self.stdout, output = _pipe()
        self.stderr, errors = _pipe()
        with output, errors:
            self._process = CONTEXT.Process(
                target=_run, args=(arguments, environment, output, errors, entry), daemon=False
            )
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.exitcode

    @property
    def returncode(self) -> int:
        """Its exit code: it has ended."""
        assert self._process.exitcode is not None
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended, and return its exit code."""
        self._process.join(timeout)
        assert self._process.exitcode is not None, f"it still runs after {timeout} s"
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send it SIGKILL, if it still runs."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Read what it still writes until it has ended."""
        with ThreadPoolExecutor(2) as readers:
            reading = [readers.submit(pipe.read) for pipe in (self.stdout, self.stderr)]
            if wait(reading, timeout).not_done:
                state = "it still runs" if self.poll() is None else "a process it left has its pipe"
                self.send_signal(STACKS_SIGNAL)
                wait(reading, STACKS_SECONDS)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
                raise AssertionError(f"{state} after {timeout} s: {reading[1].result()}")
        self.wait(timeout)
        return reading[0].result(), reading[1].result()


def _pipe() -> tuple[TextIO, Connection]:
    reading, writing = CONTEXT.Pipe(duplex=False)
    with reading:
        return os.fdopen(os.dup(reading.fileno()), encoding="utf-8"), writing


def _run(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    output: Connection,
    errors: Connection,
    entry: str,
) -> None:
    os.setsid()
    with output, errors:
        be_tapml(arguments, environment, os.dup(output.fileno()), os.dup(errors.fileno()), entry)


def run_process(*arguments: str | Path, cache: Path, **environment: str) -> Ended:
    """Run a command in a process of its own."""
    with started(*arguments, cache=cache, **environment) as process:
        output, errors = process.communicate(timeout=LIMIT_SECONDS)
    return Ended(process.returncode, output, errors)


@contextlib.contextmanager
def started(*arguments: str | Path, cache: Path, **environment: str) -> Iterator[Started]:
    """A command that runs, in a process group of its own as a shell would start it.

    Whatever of it is left when the block ends is killed.
    """
    process = Started(
        [str(each) for each in arguments],
        {**os.environ, "TAPML_CACHE_DIR": str(cache), **environment},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
