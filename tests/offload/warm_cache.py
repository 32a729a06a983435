"""A cache for one test that has the compiled code of earlier tests and runs.

Its key names all that code depends on: what changed is compiled again. The session that many tests
look at (:func:`tests.offload.sessions.finished`) starts with nothing compiled.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from tapml_targets.cache_folder import cache_folder, write_atomically

# Not ``plans``: a model is always imported.
COMPILED: Final = (
    "code-objects",
    "cubins",
    "devices",
    "libraries",
    "opencl-binaries",
    "opencl-vendors",
    "reference",
    "simulator",
    "spirv",
)


# What a session's other commands and other sessions of the same model need again.
KEPT: Final = ("libraries", "opencl-binaries", "reference")


def keep_compiled(cache: Path) -> None:
    """Put the code that was compiled into `cache` into the user's as well, for other tests."""
    for name in KEPT:
        for file in (cache / name).glob("*"):
            kept = cache_folder(name) / file.name
            if not kept.exists():
                write_atomically(kept, file.read_bytes())


def warm_cache(folder: Path, *, own_libraries: bool = False) -> Path:
    """Make `folder` a cache whose compiled code is the user's; return it.

    `own_libraries` for a test that plants wrong ones: it must not put them where others look.
    """
    folder.mkdir()
    for name in COMPILED:
        shared = cache_folder(name)
        if own_libraries and name == "libraries":
            shutil.copytree(shared, folder / name, copy_function=os.link)
        else:
            (folder / name).symlink_to(shared, target_is_directory=True)
    return folder
