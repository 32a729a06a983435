"""Virtual environments that are kept in the user's cache: other versions of a library.

An environment is a folder named after what it holds. A file that is written last says that it is
whole; until then, the next process that wants it starts over. Every user of an environment holds a
shared lock, so that none is removed under it. The least recently used ones go when all together
take more than :data:`LARGEST_BYTES`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tapml_targets.cache_folder import cache_folder, write_atomically
from tapml_targets.errors import SetupError

LARGEST_BYTES: Final = 20 << 30
"""Of all environments together. One that is larger alone is kept until the next is made."""
MAKING_SECONDS: Final = 3600.0
_WHOLE: Final = "tapml-environment.json"
_LAST_LINES: Final = 40
_MOST_VERSIONS: Final = 12
_NUMPY_1: Final = "compiled using NumPy 1.x cannot be run in"
_FULL: Final = "No space left on device"
_RETRYING: Final = "WARNING: Retrying "
_ERROR: Final = "ERROR:"
_SHOWN: Final = ("Collecting ", "Downloading ", "Installing ", "Building ")
Said = Callable[[str], None]


@contextmanager
def kept_environment(
    requirements: Sequence[str],
    *,
    imports: Sequence[str] = (),
    said: Said = lambda line: None,
    deadline_seconds: float = MAKING_SECONDS,
) -> Iterator[Path]:
    """The interpreter of an environment that has these requirements; no other process removes it.

    The first use installs them with this interpreter's pip, whose settings hold
    (``PIP_INDEX_URL``, ``PIP_FIND_LINKS``).

    Parameters
    ----------
    requirements
        As pip takes them. Equal lists share an environment, in which ranges stay what they were.
    imports
        Modules that are tried once it is made: what was built for NumPy 1 gets NumPy 1.
    said
        Receives a line now and then while pip works.
    deadline_seconds
        Time limit of pip.

    Yields
    ------
    Path
        ``bin/python``.

    Raises
    ------
    SetupError
        If pip cannot install them, takes too long, or is missing, or the cache cannot be written.
    """
    wanted = list(dict.fromkeys(requirements))
    try:
        folder = cache_folder("environments") / _name(wanted)
        # A lock has no folder of its own, so that the environment can be removed as a whole.
        descriptor = os.open(_lock_of(folder), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unwritable(error) from error
    try:
        _lock(descriptor, fcntl.LOCK_SH)
        while not (folder / _WHOLE).is_file():
            said("its environment is made, here or by another process")
            _lock(descriptor, fcntl.LOCK_EX)
            if not (folder / _WHOLE).is_file():
                _make(folder, wanted, imports, said, deadline_seconds, descriptor)
            _lock(descriptor, fcntl.LOCK_SH)
        with suppress(OSError):
            os.utime(folder / _WHOLE)
        yield folder / "bin" / "python"
    finally:
        os.close(descriptor)


def _name(requirements: Sequence[str]) -> str:
    """Legible, and another one for another interpreter."""
    key = [*requirements, sys.version, sysconfig.get_platform(), sys.base_prefix]
    digest = hashlib.sha256("\n".join(key).encode()).hexdigest()[:16]
    first = re.sub(r"[^A-Za-z0-9.]+", "-", next(iter(requirements), "empty"))
    return f"{first[:60].strip('-.')}-{digest}"


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _lock(descriptor: int, operation: int) -> None:
    try:
        fcntl.flock(descriptor, operation)
    except OSError as error:
        raise SetupError(
            f"the cache's file system has no locks ({error.strerror}): choose another cache "
            "(TAPML_CACHE_DIR)"
        ) from error


def _make(
    folder: Path,
    requirements: Sequence[str],
    imports: Sequence[str],
    said: Said,
    seconds: float,
    lock: int,
) -> None:
    try:
        _remove_oldest(folder.parent, spared=folder)
        shutil.rmtree(folder, ignore_errors=True)
        _install(folder, requirements, imports, _Following(said, seconds, lock))
        size = sum(each.lstat().st_size for each in folder.rglob("*") if not each.is_dir())
        record = {"requirements": list(requirements), "bytes": size}
        write_atomically(folder / _WHOLE, json.dumps(record).encode())
    except OSError as error:
        raise _unwritable(error) from error
    finally:
        if not (folder / _WHOLE).is_file():
            shutil.rmtree(folder, ignore_errors=True)


def _install(
    folder: Path, requirements: Sequence[str], imports: Sequence[str], following: _Following
) -> None:
    what = ", ".join(requirements)
    if find_spec("pip") is None:
        raise SetupError(
            f"pip is needed to install {what} and {sys.executable} has none: run "
            f"`{sys.executable} -m ensurepip`"
        )
    # The base interpreter: an environment that is made from one would point at that one.
    base = Path(getattr(sys, "_base_executable", sys.executable))
    python = str(folder / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-input",
           "--progress-bar", "off", "--disable-pip-version-check", *requirements]  # fmt: skip
    _must(following, [str(base), "-m", "venv", "--without-pip", str(folder)], what)
    _must(following, pip, what)
    for module in imports:
        # Releases from before NumPy 2 do not say that they cannot run with it: they crash.
        following.run([python, "-c", f"import {module}"])
        if any(_NUMPY_1 in line for line in following.seen):
            following.said("a library was built for NumPy 1, which takes the place of NumPy 2")
            _must(following, [*pip, "numpy<2"], f"{what}, numpy<2")
            return


def _must(following: _Following, command: list[str], what: str) -> None:
    if following.run(command) == 0:
        return
    if time.monotonic() >= following.until:
        raise SetupError(
            f"pip did not install {what} within {following.seconds:g} s: run it again, it goes on "
            "with what it has downloaded"
        )
    said = _errors(following.seen)
    if _FULL in said:
        raise SetupError(
            f"an environment with {what} cannot be made: {said}; free some space, or choose "
            "another cache (TAPML_CACHE_DIR)"
        )
    raise SetupError(
        f"an environment with {what} cannot be made: {said}. "
        + (
            "Its index cannot be reached: check the network, or PIP_INDEX_URL and PIP_FIND_LINKS"
            if any(_RETRYING in line for line in following.seen)
            else "Choose a version that pip has for this Python, or point PIP_INDEX_URL or "
            "PIP_FIND_LINKS to where it is"
        )
    )


@dataclass
class _Following:
    """Runs commands one after the other.

    Attributes
    ----------
    said
        Receives what pip does.
    seconds
        For all commands.
    lock
        A descriptor that commands hold as well: if this process is killed, pip goes on, and
        nobody may begin again beneath it.
    seen
        Lines of the last command.
    """

    said: Said
    seconds: float
    lock: int
    seen: list[str] = field(default_factory=list)
    until: float = field(init=False)

    def __post_init__(self) -> None:
        self.until = time.monotonic() + self.seconds

    def run(self, command: list[str]) -> int:
        """The exit code of a command."""
        self.seen = []
        variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=variables,
            start_new_session=True,
            pass_fds=[self.lock],
        ) as process:
            try:
                with _killed_at(self.until, process.pid):
                    for line in process.stdout or ():
                        if text := line.strip():
                            self.seen = [*self.seen[-_LAST_LINES:], text]
                        if text.startswith(_SHOWN):
                            self.said(text)
                    return process.wait()
            except BaseException:
                _kill(process.pid)
                raise


def _errors(last: Sequence[str]) -> str:
    """The error that venv or pip named first, else its last line; of many versions the last."""
    marked = [each[len(_ERROR) :].strip() for each in last if each.upper().startswith(_ERROR)]
    # Of a traceback the last line says what happened.
    named = [each for each in marked if not each.endswith(":")]
    said = (named or ["it said nothing", *last][-1:])[0]
    before, _, versions = said.partition("from versions: ")
    known = versions.rstrip(")").split(", ")
    if len(known) > _MOST_VERSIONS:
        said = f"{before}from versions: ..., {', '.join(known[-_MOST_VERSIONS:])})"
    return said.rstrip(".")


@contextmanager
def _killed_at(until: float, pid: int) -> Iterator[None]:
    timer = threading.Timer(max(0.0, until - time.monotonic()), _kill, [pid])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _remove_oldest(environments: Path, spared: Path) -> None:
    """Remove what was used least recently and by nobody now, until the rest is small enough."""
    found = []
    for whole in environments.glob(f"*/{_WHOLE}"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            size = int(json.loads(whole.read_bytes())["bytes"])
            found.append((whole.stat().st_mtime, size, whole.parent))
    total = sum(size for _, size, _ in found)
    for _, size, folder in sorted(found):
        if total <= LARGEST_BYTES:
            return
        if folder != spared and _removed(folder):
            total -= size


def _removed(folder: Path) -> bool:
    """Remove an environment, if nobody uses it."""
    descriptor = os.open(_lock_of(folder), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / _WHOLE).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _unwritable(error: OSError) -> SetupError:
    return SetupError(
        f"{error.filename or 'the cache'} cannot be written: {error.strerror or error}; free some "
        "space, or choose another cache (TAPML_CACHE_DIR)"
    )
