"""A patch: a Python file that a generated job loads last."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from tapml.durable.files import write_text, writing
from tapml_targets.errors import InputError

JOB: Final = "job.py"
_WITH: Final = "applied"


def read_patch(path: Path | None) -> str:
    """The text of a patch. Raises InputError if it cannot be read, or is no Python."""
    if path is None:
        return ""
    try:
        text = path.read_text(encoding="utf-8")
        compile(text, str(path), "exec")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    except SyntaxError as error:
        raise InputError(f"{path} is no Python: {error}") from error
    return text


def write_patched(folder: Path, patch: str) -> Path:
    """A job that is the folder's job with a patch applied; its path."""
    digest = hashlib.sha256(patch.encode()).hexdigest()[:12]
    place = folder / f"{_WITH}-{digest}"
    with writing(place):
        place.mkdir(exist_ok=True)
    write_text(place / "generated_job.py", (folder / JOB).read_text(encoding="utf-8"))
    write_text(place / "patch_of_job.py", patch)
    job = "from generated_job import *\nfrom patch_of_job import *\n"
    write_text(place / JOB, job)
    return place / JOB
