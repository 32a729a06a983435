"""What ``repro.json`` holds; the file is checked by its types."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from tapml.plan.graph_plan import Lifetime, Origin, OutputKind
from tapml.repro.writing import DESCRIPTION, FORMAT_VERSION
from tapml.verdicts.verdict import Cause
from tapml_targets.errors import InputError
from tapml_targets.library import Role

_MAX_BYTES: Final = 16 << 20
_Extent = Annotated[int, msgspec.Meta(ge=0)]


class TestedParameter(msgspec.Struct, frozen=True):
    """A parameter with the shape it had in the test."""

    name: str
    shape: tuple[_Extent, ...]
    dtype: str
    role: Role


class TestedOperator(msgspec.Struct, frozen=True):
    """The operator with the shapes of the test."""

    name: str
    hash: str
    parameters: tuple[TestedParameter, ...]
    symbols: tuple[str, ...]
    output_kinds: tuple[OutputKind, ...]
    script: str


class TestFacts(msgspec.Struct, frozen=True):
    """The test that failed; a lifetime per input."""

    id: str
    key: str
    symbols: dict[str, int]
    lifetimes: tuple[Lifetime, ...]


class TensorFiles(msgspec.Struct, frozen=True):
    """Names of files in the folders of these names, one per tensor."""

    inputs: tuple[str, ...]
    reference: tuple[str, ...]
    actual: tuple[str, ...]
    expected: tuple[str, ...]
    sensitivity: tuple[str, ...]


class FirstVerdict(msgspec.Struct, frozen=True):
    """The verdict when the folder was written."""

    status: str
    reason: str
    cause: Cause


class Description(msgspec.Struct, frozen=True):
    """The file's fields; `reference_ratios` are text, because JSON has no infinity."""

    operator: TestedOperator
    origins: tuple[Origin, ...]
    test: TestFacts
    terms: int
    repeats: int
    reference_ratios: tuple[str, ...]
    classes: tuple[Any, ...]
    index_sources: tuple[tuple[Any, ...] | None, ...]
    files: TensorFiles
    kernels: tuple[str | None, ...]
    policy: Mapping[str, Any]
    device: Mapping[str, Any]
    verdict: FirstVerdict


class _Head(msgspec.Struct):
    format: int


def read_bounded(path: Path, limit: int) -> bytes:
    """A file of at most `limit` bytes; raises InputError if it has more."""
    size = path.stat().st_size
    if size > limit:
        raise InputError(f"{path} has {size} bytes; at most {limit} are expected")
    return path.read_bytes()


def read_description(folder: Path) -> Description:
    """Read the description of a repro folder.

    Raises
    ------
    InputError
        If it is too large, or has another format.
    ValueError, OSError
        If it is missing or not as tapml writes it.
    """
    data = read_bounded(folder / DESCRIPTION, _MAX_BYTES)
    found = msgspec.json.decode(data, type=_Head).format
    if found != FORMAT_VERSION:
        raise InputError(
            f"{folder} has repro format {found}; this tapml reads format {FORMAT_VERSION}: write "
            "it again with `tapml offload` or `tapml replay --repro`"
        )
    return msgspec.json.decode(data, type=Description)
