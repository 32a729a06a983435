"""The real ``tapml`` command, in a process of its own or, to save its start, in this one."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tapml.cli.main import main

LIMIT_SECONDS = 240.0


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


def run_process(*arguments: str | Path, cache: Path, **environment: str) -> Ended:
    """Run a command in a process of its own."""
    with started(*arguments, cache=cache, **environment) as process:
        output, errors = process.communicate(timeout=LIMIT_SECONDS)
    return Ended(process.returncode, output, errors)


@contextlib.contextmanager
def started(
    *arguments: str | Path, cache: Path, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """A command that runs, in a process group of its own as a shell would start it.

    Whatever of it is left when the block ends is killed.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "tapml.cli.main", *map(str, arguments)],
        env={**os.environ, "TAPML_CACHE_DIR": str(cache), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
