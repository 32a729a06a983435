"""The order of a set-up: choose the folder, lock it, make it, fill it, record it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.environment import pytorch_index
from scripts.environment.installer import Durations, Pip, SetupError, clean_environment, say
from scripts.environment.location import ROOT, environment_folder, is_ours
from scripts.environment.lock import exclusive
from scripts.environment.record import (
    RECORD_NAME,
    Record,
    is_intact,
    python_of,
    read_record,
    requirements_key,
    write_record,
)

LOG_NAME = "tapml-setup.log"
SECONDS_VARIABLE = "TAPML_SETUP_SECONDS"
# Unpacked, with what pip needs meanwhile.
NEEDED_MB = {"check": 200, "host": 2500, "opencl-cpu": 1200, "test": 200}
WHAT = {
    "check": "Oclgrind, a simulator that checks kernels (about 40 MB, once)",
    "host": "the compiler and transformers (about 150 MB, once)",
    "opencl-cpu": "Intel's OpenCL runtime for the CPU (about 280 MB, once)",
    "test": "the test tools (about 30 MB, once)",
}


@dataclass(frozen=True)
class Environment:
    """A finished environment.

    Attributes
    ----------
    folder
        Where it lies.
    python
        Its interpreter.
    seconds
        What the set-up took in this call: downloading and unpacking; zero when it was there.
    """

    folder: Path
    python: Path
    seconds: Durations


def ensure(extras: Iterable[str], root: Path = ROOT) -> Environment:
    """Return the project's environment with at least `extras`, made or completed if need be.

    Raises
    ------
    SetupError
        If it cannot be made; the message names the remedy.
    """
    folder = environment_folder(root, os.environ)
    wanted = frozenset(extras)
    durations = Durations()
    if not _is_complete(folder, root, wanted):
        if not is_ours(folder):
            raise SetupError(
                f"TAPML_VENV names {folder}, which holds something else: give a new or empty one."
            )
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with exclusive(folder, _say_waiting) as lock:
                if not _is_complete(folder, root, wanted):
                    _make(folder, root, wanted, lock, durations)
        except OSError as error:
            raise SetupError(
                f"the environment {folder} cannot be written: {error.strerror or error}. "
                "Set TAPML_VENV to a folder that can, with 3 GB free."
            ) from error
    return Environment(folder, python_of(folder), durations)


def enter(environment: Environment, script: Path, arguments: Sequence[str]) -> None:
    """Go on with `script` under the environment's Python; return at once if this is it."""
    if Path(sys.prefix).resolve() == environment.folder.resolve():
        return
    seconds = environment.seconds
    variables = clean_environment(os.environ)
    variables[SECONDS_VARIABLE] = f"{seconds.downloading:.1f} {seconds.unpacking:.1f}"
    variables["VIRTUAL_ENV"] = str(environment.folder)
    variables["PATH"] = os.pathsep.join(
        [str(environment.folder / "bin"), variables.get("PATH", os.defpath)]
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(environment.python, [str(environment.python), str(script), *arguments], variables)


def setup_seconds() -> Durations:
    """Return what the set-up took before `enter`."""
    downloading, unpacking = os.environ.get(SECONDS_VARIABLE, "0 0").split()
    return Durations(float(downloading), float(unpacking))


def _is_complete(folder: Path, root: Path, wanted: frozenset[str]) -> bool:
    record = read_record(folder)
    return (
        record is not None
        and is_intact(folder, record)
        and record.key == requirements_key(root)
        and wanted <= frozenset(record.extras)
    )


def _say_waiting(holder: str) -> None:
    say(f"another set-up is running (process {holder}); waiting for it to end ...")


def _make(
    folder: Path, root: Path, wanted: frozenset[str], lock: int, durations: Durations
) -> None:
    """Fill `folder` under the lock: in place if it is sound, else from nothing."""
    record = read_record(folder)
    present: frozenset[str] = frozenset()
    if record is not None and is_intact(folder, record) and _same_python(folder):
        present = frozenset(record.extras)
    started = time.monotonic()
    _check_space(folder.parent, wanted - present)
    if not present:
        _start_anew(folder, root, record)
    record = Record(
        finished=False,
        key=requirements_key(root),
        extras=tuple(sorted(wanted | present)),
        interpreter=os.path.realpath(python_of(folder)),
    )
    write_record(folder, record)
    pip = Pip(python_of(folder), folder / LOG_NAME, (lock,), durations)
    titles = [WHAT[extra] for extra in sorted(wanted - present) if extra in WHAT]
    needs_torch = "host" in record.extras and not _has_pinned_torch(folder, root)
    if needs_torch and not (sys.platform == "linux" and pytorch_index.install_cpu_build(pip, root)):
        titles.insert(0, "PyTorch (200 MB, or several GB where its build is for CUDA; once)")
    names = ",".join(record.extras)
    pip.install(
        "installing " + ("; ".join(titles) or "what changed in the requirements"),
        ["--constraint", str(root / "constraints.txt"), "--editable", f"{root}[{names}]"],
    )
    write_record(folder, Record(True, record.key, record.extras, record.interpreter))
    say(f"set-up finished in {time.monotonic() - started:.0f} s: {folder}")


def _same_python(folder: Path) -> bool:
    """Whether the environment is for the Python version that runs this script."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return (folder / "lib" / version / "site-packages").is_dir()


def _check_space(folder: Path, extras: frozenset[str]) -> None:
    needed = sum(NEEDED_MB.get(extra, 0) for extra in extras)
    free = shutil.disk_usage(folder).free // 1_000_000
    if free < needed:
        raise SetupError(
            f"{folder} has {free} MB free and the set-up needs about {needed} MB: free some space, "
            "or set TAPML_VENV to a folder on a larger disk."
        )


def _start_anew(folder: Path, root: Path, record: Record | None) -> None:
    """Make an empty environment; the record stands in it, unfinished, before anything else."""
    version = ".".join(map(str, sys.version_info[:3]))
    if record is None:
        say(f"making the project's environment for Python {version}: {folder}")
    elif record.finished:
        say(f"making the environment anew for Python {version}: {folder}")
    else:
        say(f"an earlier set-up was interrupted; making the environment anew: {folder}")
    _empty(folder)
    write_record(folder, Record(False, requirements_key(root), (), ""))
    has_ensurepip = importlib.util.find_spec("ensurepip") is not None
    options = [] if has_ensurepip else ["--without-pip"]
    _run([sys.executable, "-m", "venv", *options, str(folder)])
    if not has_ensurepip:
        _run([
            sys.executable, "-m", "pip", "--python", str(python_of(folder)), "install", "pip",
        ])  # fmt: skip


def _empty(folder: Path) -> None:
    """Delete what an earlier set-up made, its record last, so that it stays known as ours."""
    folder.mkdir(exist_ok=True)
    for entry in folder.iterdir():
        if entry.name == RECORD_NAME:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _run(command: Sequence[str]) -> None:
    """Run a step that makes the environment itself."""
    result = subprocess.run(
        command,
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=clean_environment(os.environ),
    )
    if result.returncode != 0:
        version = ".".join(map(str, sys.version_info[:2]))
        said = (result.stderr.strip() or result.stdout.strip()).splitlines()
        raise SetupError(
            f"`{' '.join(command)}` failed: {said[-1] if said else 'no message'}\n"
            f"A virtual environment needs the venv module and pip: on Debian and Ubuntu "
            f"`apt-get install python{version}-venv`, or use a Python from python.org, uv or conda."
        )


def _has_pinned_torch(folder: Path, root: Path) -> bool:
    pin = re.search(r"^torch==(\S+)$", (root / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    assert pin is not None
    return any(folder.glob(f"lib/python*/site-packages/torch-{pin[1]}*.dist-info"))
