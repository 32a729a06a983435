"""Object code to a shared object, by the machine's own linker."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tapml_targets.errors import CompileError

# A compiler driver finds the C library by itself; a bare linker needs no more than it is given.
_DRIVERS: Final = ("cc", "gcc", "clang")
_LINKERS: Final = ("ld.lld", "ld")
_LINK_SECONDS: Final = 60


def link_shared_object(*object_code: bytes) -> bytes:
    """A shared object out of relocatable ones.

    Raises
    ------
    CompileError
        If no linker is installed, or it fails.
    """
    command = _link_command()
    with tempfile.TemporaryDirectory(prefix="tapml-") as folder:
        names = []
        for index, code in enumerate(object_code):
            names.append(f"operator_{index}.o")
            (Path(folder) / names[-1]).write_bytes(code)
        try:
            done = subprocess.run(
                [*command, "-o", "operator.so", *names],
                cwd=folder,
                capture_output=True,
                timeout=_LINK_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompileError(f"the linker {command[0]} could not run: {error}") from error
        if done.returncode:
            log = done.stderr.decode(errors="replace")[-2000:]
            raise CompileError(f"the linker {command[0]} failed:\n{log}")
        return (Path(folder) / "operator.so").read_bytes()


def _link_command() -> list[str]:
    for name in _DRIVERS:
        if path := shutil.which(name):
            # No build id and fixed names: the same operator gives the same bytes.
            return [path, "-shared", "-Wl,--build-id=none"]
    for name in _LINKERS:
        if path := shutil.which(name):
            return [path, "-shared", "--build-id=none"]
    raise CompileError(
        f"no linker found: none of {', '.join((*_DRIVERS, *_LINKERS))} is on the PATH; install one "
        "(Debian and Ubuntu: apt install gcc)"
    )
