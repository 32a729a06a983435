"""Repro folders without a test: kernels that a device does not build, or that exceed its limits.

failure.json     operator, device, limits' symbols, why it failed, where it comes from
library.tapml    the Library as it was to be uploaded
kernels/         its sources; what is edited here is what repro.py tries
operator.txt     the operator, as TVMScript
repro.py  README.txt
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tapml.carving.repro_failure import KERNELS
from tapml.carving.repro_folder import with_sources
from tapml.carving.repro_tensors import read_bounded
from tapml.compiler.preflight import require
from tapml.compiler.reach import Reach
from tapml_targets.errors import InputError
from tapml_targets.library import Library
from tapml_targets.library_format import unpack
from tapml_targets.limits import Limits

ATTEMPT: Final = "failure.json"
ATTEMPT_LIBRARY: Final = "library.tapml"
ATTEMPT_VERSION: Final = 1
_MAX_BYTES: Final = 16 << 20
_MAX_LIBRARY_BYTES: Final = 1 << 30


@dataclass(frozen=True)
class Attempt:
    """Kernels given to a device that did not take them.

    Attributes
    ----------
    operator
        Whose kernels.
    library
        With the sources as they are now.
    edited
        Names of sources that are not as they were written.
    device
        ``platform``, ``name``, ... of the device that did not take them.
    symbols
        Values of the operator's shape symbols at each of its call sites.
    status, reason
        What came of it then.
    """

    operator: str
    library: Library
    edited: tuple[str, ...]
    device: Mapping[str, Any]
    symbols: tuple[Mapping[str, int], ...]
    status: str
    reason: str

    def require(self, limits: Limits) -> None:
        """Raise LimitExceededError naming what exceeds a device's limits."""
        require(self.library, limits, reach=Reach({self.operator: self.symbols}))


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
        data = json.loads(read_bounded(folder / ATTEMPT, _MAX_BYTES))
        if data["format"] != ATTEMPT_VERSION:
            raise InputError(
                f"{folder} has failure format {str(data['format'])[:20]}; this tapml reads "
                f"{ATTEMPT_VERSION}: write it again with `tapml offload`"
            )
        if data["kernels"] is None:
            raise InputError(
                f"{folder} has no kernels to try: {data['operator']} failed before there were any, "
                "or only in the whole model; its README.txt says how to see that again"
            )
        library = unpack(read_bounded(folder / ATTEMPT_LIBRARY, _MAX_LIBRARY_BYTES))
        library, edited = with_sources(library, folder / KERNELS, data["kernels"])
        return Attempt(
            operator=str(data["operator"]),
            library=library,
            edited=edited,
            device={str(name): value for name, value in data["device"].items()},
            symbols=_symbols(data["symbols"]),
            status="fail",
            reason=str(data["reason"]),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OSError) as error:
        raise InputError(f"{folder} is no repro folder, or damaged: {error!r}") from error


def _symbols(data: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, int], ...]:
    return tuple({str(name): int(value) for name, value in each.items()} for each in data)
