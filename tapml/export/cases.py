"""What an exported folder lists: its test files, their operators and the ids of their tests.

Read while pytest collects, so it needs the base install alone. Names of operators and tests
come from a model and live in this file as data; no name of theirs becomes code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from tapml_targets.errors import InputError

FORMAT: Final[Literal["tapml-pytest/2"]] = "tapml-pytest/2"
CASES: Final = "cases.json"
SUITE: Final = "suite"
LIBRARIES: Final = "libraries"
MAX_BYTES: Final = 256 << 20


@dataclass(frozen=True)
class ExportedFile:
    """A test file: its operator, the ids of its tests in the order of the carve, and of probes."""

    operator: str
    tests: tuple[str, ...]
    probes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExportedCases:
    """All of an exported folder.

    Attributes
    ----------
    model
        Name of the model the suite was carved from.
    files
        By file name.
    """

    model: str
    files: Mapping[str, ExportedFile]

    def to_json(self) -> dict[str, Any]:
        """As :func:`read_cases` reads it."""
        return {"format": FORMAT} | asdict(self)


class _Document(msgspec.Struct):
    format: Literal["tapml-pytest/2"]
    model: str
    files: dict[str, ExportedFile]


def is_export(folder: Path) -> bool:
    """Whether a folder was written by ``tapml carve --export pytest``."""
    return (folder / CASES).is_file() and (folder / SUITE).is_dir()


def check_target(target: Path, *, overwrite: bool) -> None:
    """Raise :class:`InputError` if `target` exists, unless it is an export to be replaced."""
    if not target.exists():
        return
    if not overwrite:
        raise InputError(f"{target} exists: name another folder, or replace it (--overwrite)")
    # Only what an export wrote is ever removed.
    if not is_export(target):
        raise InputError(f"{target} is no folder of exported tests: it is not replaced")


def read_cases(folder: Path) -> ExportedCases:
    """Read and check what a folder lists.

    Raises
    ------
    InputError
        If the file is missing, too large or not as it was written.
    """
    path = folder / CASES
    again = "export again with `tapml carve --from-suite SUITE --export pytest FOLDER`"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror}): {again}") from error
    if len(data) > MAX_BYTES:
        raise InputError(f"{path} is larger than {MAX_BYTES} bytes: {again}")
    try:
        found = msgspec.json.decode(data, type=_Document)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({error!r}): {again}") from error
    return ExportedCases(found.model, found.files)
