"""Repro folders without a test: kernels that a device does not build, or that exceed its limits.

failure.json     operator, device, limits' symbols, why it failed, where it comes from
library.tapml    the Library as it was to be uploaded
kernels/         its sources; what is edited here is what repro.py tries
operator.txt     the operator, as TVMScript
repro.py  README.txt
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from tapml.compiler.preflight import require
from tapml.compiler.symbol_ranges import SymbolRanges
from tapml.replaying.failure import KERNELS
from tapml.repro.description import read_bounded
from tapml.repro.folder import with_sources
from tapml.verdicts.verdict import Cause
from tapml_targets.errors import InputError
from tapml_targets.library import Library
from tapml_targets.library_format import unpack
from tapml_targets.limits import Limits

ATTEMPT: Final = "failure.json"
ATTEMPT_LIBRARY: Final = "library.tapml"
ATTEMPT_VERSION: Final = 2
_MAX_BYTES: Final = 16 << 20
_MAX_LIBRARY_BYTES: Final = 1 << 30


class _Head(msgspec.Struct):
    format: int


class _Failure(msgspec.Struct, frozen=True):
    operator: str
    kernels: tuple[str | None, ...] | None
    device: dict[str, Any]
    symbols: tuple[dict[str, int], ...]
    reason: str
    cause: Cause


@dataclass(frozen=True)
class Attempt:
    """An operator's kernels that a device rejected, with the sources as they are in the folder now.

    `edited` names the changed sources, `symbols` has the values of the shape symbols at each call
    site, and `status`, `reason` and `cause` are the verdict of then.
    """

    operator: str
    library: Library
    edited: tuple[str, ...]
    device: Mapping[str, Any]
    symbols: tuple[Mapping[str, int], ...]
    status: str
    reason: str
    cause: Cause

    def require(self, limits: Limits) -> None:
        """Raise LimitExceededError naming what exceeds a device's limits."""
        require(self.library, limits, ranges=SymbolRanges({self.operator: self.symbols}))


def is_attempt(folder: Path) -> bool:
    """Whether `folder` holds kernels to try."""
    return (folder / ATTEMPT).is_file()


def read_attempt(folder: Path) -> Attempt:
    """Read and check a folder; nothing in it is trusted.

    Raises
    ------
    InputError
        If it holds no kernels, is of another version, or damaged.
    """
    try:
        data = read_bounded(folder / ATTEMPT, _MAX_BYTES)
        version = msgspec.json.decode(data, type=_Head).format
        if version != ATTEMPT_VERSION:
            raise InputError(
                f"{folder} has failure format {version}; this tapml reads {ATTEMPT_VERSION}: "
                "write it again with `tapml offload`"
            )
        failure = msgspec.json.decode(data, type=_Failure)
        if failure.kernels is None:
            raise InputError(
                f"{folder} has no kernels to try: {failure.operator} failed before there were any, "
                "or only in the whole model; its README.txt says how to see that again"
            )
        library = unpack(read_bounded(folder / ATTEMPT_LIBRARY, _MAX_LIBRARY_BYTES))
        library, edited = with_sources(library, folder / KERNELS, failure.kernels)
        return Attempt(
            operator=failure.operator,
            library=library,
            edited=edited,
            device=failure.device,
            symbols=failure.symbols,
            status="fail",
            reason=failure.reason,
            cause=failure.cause,
        )
    except (ValueError, RecursionError, OSError) as error:
        raise InputError(f"{folder} is not a repro folder, or it is damaged: {error}") from error
