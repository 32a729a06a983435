"""The project's own virtual environment: made by the first run of a script, found by later ones.

Standard library only, because nothing is installed yet. The last step of a set-up writes a marker
file. A folder without it is emptied and filled again, because pip takes a half-unpacked package
for an installed one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import tomllib
import urllib.request
import venv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NoReturn, TextIO

ROOT: Final = Path(__file__).resolve().parent.parent
MARKER: Final = "tapml-setup.txt"
LOG: Final = "tapml-setup.log"
# PyPI's builds for Linux bring several gigabytes of CUDA libraries; these are a tenth of that.
CPU_INDEX: Final = "https://download.pytorch.org/whl/cpu"
_PYTHON: Final = str(sys.implementation.cache_tag)
_REMEDY: Final = """\
No network: name a proxy in https_proxy or a mirror with `pip config set global.index-url URL`.
Full disk: free 3 GB (8 GB for PyTorch's CUDA build) or set TAPML_VENV to a folder elsewhere.
No matching distribution: use Python 3.11 to 3.13 on Linux (x86-64, aarch64) or macOS (arm64).
Then run again: an environment that is not finished is never used."""


class SetupError(Exception):
    """The environment could not be made; the message says what to do."""


def ensure(extras: Iterable[str], root: Path = ROOT) -> Path:
    """Return the folder of the environment, after installing in it what is missing.

    Parameters
    ----------
    extras
        Extras of the distribution that the caller needs; those installed earlier stay.
    root
        The project's folder. The environment is in ``$TAPML_VENV``, or else in ``.venv`` there.

    Raises
    ------
    SetupError
        If the folder holds something else or cannot be written, or if venv or pip fails.
    """
    folder = Path(os.environ.get("TAPML_VENV") or root / ".venv").expanduser().absolute()
    wanted = set(extras)
    if _has(folder, root, wanted):
        return folder
    try:
        if folder.exists() and any(folder.iterdir()) and not (folder / LOG).is_file():
            remedy = "Move it away, or set TAPML_VENV to a new or empty folder."
            raise SetupError(f"{folder} holds something that this set-up did not make. {remedy}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder) as lock:
            if not _has(folder, root, wanted):
                started = time.monotonic()
                _install(folder, root, wanted, lock.fileno())
                say(f"set-up finished in {time.monotonic() - started:.0f} s: {folder}")
    except OSError as error:
        remedy = "Set TAPML_VENV to a folder that can, with 3 GB free."
        raise SetupError(f"{folder} cannot be written: {error.strerror}. {remedy}") from error
    return folder


def enter(folder: Path) -> None:
    """Run this script again under the environment's Python; return if that runs it already."""
    if Path(sys.prefix).resolve() == folder.resolve():
        return
    path = os.pathsep.join([f"{folder}/bin", os.environ.get("PATH", os.defpath)])
    variables = clean_environment() | {"VIRTUAL_ENV": str(folder), "PATH": path}
    os.execve(python_of(folder), [str(python_of(folder)), *sys.argv], variables)


def run_script(main: Callable[[list[str]], int], name: str) -> NoReturn:
    """Run an entry script's `main` and exit: with 2 if there is no environment, 130 for Ctrl-C."""
    try:
        sys.exit(main(sys.argv[1:]))
    except SetupError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted; an environment that is not finished is never used", file=sys.stderr)
        sys.exit(130)


def python_of(folder: Path) -> Path:
    """Return the environment's interpreter."""
    return folder / "bin" / "python"


def say(text: str) -> None:
    """Print one line of progress."""
    print(text, file=sys.stderr, flush=True)


def clean_environment() -> dict[str, str]:
    """Return the process's variables, less those that make Python or pip leave an environment."""
    foreign = {"PYTHONHOME", "PYTHONPATH", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER"}
    return {name: value for name, value in os.environ.items() if name not in foreign}


def answers(index: str, patience: float = 3.0) -> bool:
    """Whether a package index serves its page of PyTorch within `patience` seconds."""
    served = threading.Event()

    def ask() -> None:
        try:
            with urllib.request.urlopen(f"{index}/torch/", timeout=patience):
                served.set()
        except (OSError, ValueError):
            pass

    # In a thread, because a name server may be silent for longer than any timeout of a socket.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(patience)
    return served.is_set()


def requirements_key(root: Path) -> str:
    """Hash what decides the content of an environment; settings of ruff or pytest do not."""
    tables = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    hatch = tables.get("tool", {}).get("hatch")
    alone = _without_dependencies(tables)
    text = json.dumps(
        [tables.get("build-system"), tables.get("project"), hatch, *([alone] if alone else [])],
        sort_keys=True,
    )
    text += (root / "constraints.txt").read_text("utf-8")
    return hashlib.sha256(text.encode()).hexdigest()


def _without_dependencies(tables: dict[str, Any]) -> dict[str, list[str]]:
    """By extra, the requirements that come without their own; from the tables of pyproject.toml."""
    ours = tables.get("tool", {}).get("tapml", {})
    found: dict[str, list[str]] = ours.get("without-dependencies", {})
    return found


def _marker(folder: Path) -> list[str]:
    """Python version, requirements' key and extras of a finished set-up; else nothing."""
    try:
        words = (folder / MARKER).read_text("utf-8").split()
    except (OSError, ValueError):
        return []
    return words if python_of(folder).exists() else []


def _has(folder: Path, root: Path, wanted: set[str]) -> bool:
    marker = _marker(folder)
    return marker[:2] == [_PYTHON, requirements_key(root)] and wanted <= set(marker[2:])


def _lock(folder: Path) -> TextIO:
    """Wait for other set-ups; the lock holds until the last process with this file open ends.

    pip inherits it, so a killed script does not free it while its pip still writes.
    """
    lock = folder.with_name(folder.name + ".lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"another set-up of {folder} is running; waiting for it to end ...")
        fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def _install(folder: Path, root: Path, wanted: set[str], lock: int) -> None:
    """Add to a finished environment of this Python, or make one from nothing."""
    # Of before the installation: what is edited meanwhile asks for another one.
    marker, key = _marker(folder), requirements_key(root)
    (folder / MARKER).unlink(missing_ok=True)
    if marker[:1] == [_PYTHON]:
        wanted = wanted | set(marker[2:])
    else:
        version = ".".join(map(str, sys.version_info[:3]))
        say(f"making the project's environment for Python {version}: {folder}")
        _create(folder)
    extras = sorted(wanted)
    say(f"installing {', '.join(extras)} (up to 700 MB with PyTorch and the compiler, once) ...")
    index: list[str] = []
    if "host" in wanted and sys.platform == "linux" and answers(CPU_INDEX):
        # Its versions end in +cpu, which pip counts as newer than the same one elsewhere.
        index = ["--extra-index-url", CPU_INDEX]
    elif "host" in wanted:
        say("without PyTorch's index of CPU builds: PyTorch comes from the default index")
    # Bytecode is written when a module is first imported, not for every file of every package.
    pip = [
        str(python_of(folder)), "-m", "pip", "install", "--no-input", "--no-compile",
        "--disable-pip-version-check", "--log", str(folder / LOG), *index,
    ]  # fmt: skip
    constraints = ["--constraint", str(root / "constraints.txt")]
    steps = [[*pip, *constraints, "--editable", f"{root}[{','.join(extras)}]"]]
    tables = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    alone = _without_dependencies(tables)
    named = [text for extra in extras for text in alone.get(extra, ())]
    if named:
        steps.append([*pip, "--no-deps", *named])
    own = clean_environment()
    for step in steps:
        # Its output goes to stderr: stdout is the script's own.
        if subprocess.call(step, stdin=subprocess.DEVNULL, stdout=2, env=own, pass_fds=[lock]):
            raise SetupError(f"pip failed; its output is above and in {folder / LOG}.\n{_REMEDY}")
    new = folder / f"{MARKER}.new"
    new.write_text(" ".join([_PYTHON, key, *extras]), "utf-8")
    new.replace(folder / MARKER)
    # pip notes every link it looks at, 64 MB for all extras: of use only where it failed.
    (folder / LOG).write_bytes(b"")


def _create(folder: Path) -> None:
    """Make an empty environment; the log stays, because it marks the folder as ours."""
    folder.mkdir(exist_ok=True)
    (folder / LOG).touch()
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != LOG:
            entry.unlink()
    try:
        venv.create(folder, with_pip=True)
    except subprocess.CalledProcessError as error:
        version = ".".join(map(str, sys.version_info[:2]))
        raise SetupError(
            f"no virtual environment can be made: {error}\nOn Debian and Ubuntu, `apt-get install "
            f"python{version}-venv`; or use a Python from python.org, uv or conda."
        ) from error
