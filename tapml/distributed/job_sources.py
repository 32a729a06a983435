"""What a job's file imports, and its constants. No framework here."""

from __future__ import annotations

import hashlib
import sys
import threading
from pathlib import Path
from typing import Final

from tapml.distributed.job_file import MODULE, Job
from tapml.isolate.imported_files import imported_beside
from tapml_targets.errors import InputError

# A job whose imports take longer has them preloaded: every rank of every run would wait for them.
SLOW_SECONDS: Final = 0.5


def ready(_: None) -> bool:
    """Whether a process with other preloaded modules can start; a job."""
    return True


def count_threads() -> int:
    """Threads of this process, also those of libraries: none survives a fork."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.is_dir() else threading.active_count()


def importable(before: set[str], folder: Path) -> list[str]:
    """Modules that the job's imports loaded, except those beside the job."""
    found = []
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        if name in before or name == MODULE or spec is None or spec.name != name:
            continue
        if (
            spec.origin
            and Path(spec.origin).is_file()
            and not Path(spec.origin).is_relative_to(folder)
        ):
            found.append(name)
    return found


def sources(job: Job, before: set[str]) -> dict[str, str]:
    """Hashes of the job's file and of what it imports from its folder, by name.

    Also what a function would import later, in whichever process.
    """
    found = {MODULE: job.path} | imported_beside(job.path)
    for name, module in list(sys.modules.items()):
        origin = Path(getattr(module, "__file__", None) or "/")
        if name not in before and origin.is_relative_to(job.path.parent) and origin.is_file():
            found[name] = origin
    return {
        name: hashlib.sha256(origin.read_bytes()).hexdigest()
        for name, origin in sorted(found.items())
    }


def constant(job: Job, name: str, given: int | None, default: int) -> int:
    """A count: the given one, else the job's. Raises InputError if it is none."""
    value = job.constant(name, default) if given is None else given
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(
            f"{job.path.name}: {name} must be a whole number of at least 1, got {value!r}"
        )
    return value


def worlds(job: Job, given: list[int] | None) -> list[int]:
    """The worlds: the given ones, else the job's. Raises InputError if they are none."""
    found = job.constant("WORLDS", (1, 2, 4)) if given is None else given
    valid = isinstance(found, list | tuple | range) and found
    if not valid or not all(type(each) is int and each >= 1 for each in found):
        raise InputError(
            f"{job.path.name}: WORLDS must be a list of whole numbers of at least 1, got {found!r}"
        )
    return list(dict.fromkeys(found))
