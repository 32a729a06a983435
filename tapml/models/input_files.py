"""Inputs of plain modules in files of NumPy: one array, or arrays by name."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tapml_targets.errors import InputError

Array: TypeAlias = npt.NDArray[Any]

_LARGEST: Final = 1 << 30
_MOST: Final = 256


def read_inputs(path: Path) -> Array | dict[str, Array]:
    """The array of a ``.npy`` file, or those of a ``.npz`` file by name.

    Raises
    ------
    InputError
        If it cannot be read, is too large, or holds objects, which could run code.
    """
    try:
        size = path.stat().st_size
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                members = archive.infolist()
                size = sum(each.file_size for each in members)
                if len(members) > _MOST:
                    raise InputError(f"{path} has {len(members)} arrays: expected at most {_MOST}")
        if size > _LARGEST:
            raise InputError(f"{path} holds more than {_LARGEST} bytes: expected one input")
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found
        arrays = dict(found.items())
        for name, each in arrays.items():
            if not isinstance(each, np.ndarray):  # NumPy gives the bytes of any other file.
                raise InputError(f"{path} holds {name[:100]!r}, which is no array")
        return arrays
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (
        ValueError,
        EOFError,
        MemoryError,
        RuntimeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise InputError(
            f"{path} holds no arrays in NumPy's format without objects: write it with numpy.save "
            "or numpy.savez"
        ) from error


def input_file(path: str | Path) -> tuple[Array | dict[str, Array], str]:
    """The inputs in a file, and what people call them: its name."""
    return read_inputs(Path(path)), Path(path).name
