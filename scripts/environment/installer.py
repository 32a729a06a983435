"""pip, step by step, with what it is doing in one line and everything it said in a log."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LARGE_DOWNLOAD_MB = 15.0
TAIL_LINES = 12
NETWORK_FAULTS = re.compile(
    r"Failed to establish a new connection|[Nn]ame or service not known|[Nn]ame resolution"
    r"|Network is unreachable|Connection refused|Read timed out|ConnectTimeout|ProxyError"
)
# The second form is what pip says of a pinned package that the index lacks for this machine.
MISSING_BUILD = re.compile(
    r"(?:No matching distribution found for|The user requested \(constraint\)) (\S+)"
)


class SetupError(Exception):
    """The environment could not be made; the message ends with the remedy."""


@dataclass
class Durations:
    """Seconds spent in a set-up, by what took them."""

    downloading: float = 0.0
    unpacking: float = 0.0


@dataclass(frozen=True)
class Pip:
    """The pip of one environment.

    Attributes
    ----------
    python
        The environment's interpreter.
    log
        File that everything pip prints is appended to.
    inherited
        Descriptors that pip inherits: the set-up's lock.
    durations
        Added to by every call.
    """

    python: Path
    log: Path
    inherited: tuple[int, ...]
    durations: Durations

    def install(self, title: str, arguments: Sequence[str]) -> None:
        """Run ``pip install`` and show `title`, large downloads and the time on stderr.

        Raises
        ------
        SetupError
            If pip fails: the end of what it said, and the remedy where the fault is a known one.
        """
        # Packages are compiled when they are first imported: a few seconds for those in use
        # instead of a minute for all.
        command = [
            str(self.python), "-m", "pip", "install", "--no-input", "--no-compile",
            "--disable-pip-version-check", "--progress-bar", "off", *arguments,
        ]  # fmt: skip
        say(f"{title} ...")
        started = time.monotonic()
        unpacking_since: float | None = None
        lines: list[str] = []
        with self.log.open("a", encoding="utf-8", errors="replace") as log:
            log.write(f"$ {' '.join(command)}\n")
            log.flush()
            with subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                encoding="utf-8",
                errors="replace",
                env=clean_environment(os.environ),
                pass_fds=self.inherited,
                process_group=0,
            ) as pip:
                try:
                    assert pip.stdout is not None
                    for line in pip.stdout:
                        log.write(line)
                        log.flush()
                        lines.append(line.rstrip())
                        if line.startswith("Installing collected packages"):
                            unpacking_since = time.monotonic()
                            say(f"  unpacking {line.count(',') + 1} packages")
                        elif download := large_download(line):
                            say(f"  downloading {download}")
                except BaseException:
                    # With the builds it has started, which a signal to pip alone leaves running.
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pip.pid, signal.SIGTERM)
                    raise
        ended = time.monotonic()
        self.durations.downloading += (unpacking_since or ended) - started
        self.durations.unpacking += ended - (unpacking_since or ended)
        if pip.returncode != 0:
            raise SetupError(failure_text(title, lines, self.log))


def say(text: str) -> None:
    """Print one line of progress."""
    print(text, file=sys.stderr, flush=True)


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Drop the variables that make a Python or its pip look or write outside its environment."""
    unwanted = {"PYTHONHOME", "PYTHONPATH", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER"}
    return {name: value for name, value in environ.items() if name not in unwanted}


def large_download(line: str) -> str | None:
    """Return "name (N MB)" if a line of pip's output announces a download worth showing."""
    found = re.match(
        r"\s*Downloading (?:\S*/)?(\S+?)(?:\.metadata)? \((\d+(?:\.\d+)?) ([MG])B\)", line
    )
    if not found:
        return None
    megabytes = float(found[2]) * (1000 if found[3] == "G" else 1)
    if megabytes < LARGE_DOWNLOAD_MB:
        return None
    name = "-".join(found[1].split("-")[:2])
    return f"{name} ({megabytes:.0f} MB)"


def failure_text(title: str, lines: Sequence[str], log: Path) -> str:
    """Say what failed, with the end of pip's output and what to do about it."""
    output = "\n".join(lines)
    tail = "\n".join(f"    {line}" for line in lines[-TAIL_LINES:])
    return f"{title}: pip failed. It said\n{tail}\n{remedy(output)}\nThe whole output is in {log}."


def remedy(output: str) -> str:
    """Return what to do about a fault of pip, by what it printed."""
    if "No space left on device" in output:
        return (
            "The disk is full: free about 3 GB, or 8 GB where PyTorch's build is the one for CUDA, "
            "in the environment's and the temporary folder, and run again."
        )
    if NETWORK_FAULTS.search(output):
        return (
            "The package index cannot be reached: check the network, or name a proxy in "
            "https_proxy or a mirror with `pip config set global.index-url URL`, and run again."
        )
    if missing := MISSING_BUILD.search(output):
        version = ".".join(map(str, sys.version_info[:2]))
        return (
            f"There is no build of {missing[1]} for Python {version} on this machine: Python "
            "3.11 to 3.13 on Linux (x86-64, aarch64) or macOS (arm64) have all of them."
        )
    return "Run again once the cause above is gone; a half-made environment is never used."
