"""Reads ``.npz`` files: what ``numpy.savez`` wrote is mapped, so that files may exceed memory."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from struct import Struct
from typing import IO, Final

import numpy as np

from tapml.backends.runner import Array
from tapml.comparing.data_folders import LARGEST_BYTES
from tapml_targets.errors import InputError

_MAPPED_FROM: Final = 1 << 30
_LOCAL: Final = Struct("<26xHH")
"""The lengths of the name and of what follows it, in the header that lies before a member."""


def read_archive(path: Path) -> dict[str, Array]:
    """The arrays of an ``.npz`` file by name.

    A file of more than 1 GiB is mapped, so that it is read a window at a time, unless it is
    compressed.

    Raises
    ------
    InputError
        If the file is no such archive, or what is compressed takes more than 8 GiB.
    """
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            whole = sum(each.file_size for each in members)
            packed = sum(each.file_size for each in members if each.compress_type)
            if packed > LARGEST_BYTES:
                raise InputError(
                    f"{path} unpacks to {packed} bytes in memory; expected at most "
                    f"{LARGEST_BYTES}, or any number of np.savez, which does not compress"
                )
            return {
                each.filename.removesuffix(".npy"): _unpacked(archive, each)
                if each.compress_type or whole <= _MAPPED_FROM
                else _mapped(path, file, each)
                for each in members
            }
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}") from error
    except (zipfile.BadZipFile, zlib.error, ValueError, OSError, EOFError) as error:
        others = "" if path.suffix == ".npz" else (
            "; data is an .npz, .npy, .csv or .txt file, or a folder of images, arrays or texts"
        )  # fmt: skip
        raise InputError(f"{path} is no .npz file of numbers ({error}){others}") from error
    except (NotImplementedError, RuntimeError) as error:  # Encrypted, or packed in another way.
        raise InputError(f"{path} is no .npz file of np.savez ({error})") from error


def _unpacked(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    with archive.open(member) as file:
        found: Array = np.lib.format.read_array(file, allow_pickle=False)
    return found


def _mapped(path: Path, file: IO[bytes], member: zipfile.ZipInfo) -> Array:
    """A member's array, where the file has it."""
    file.seek(member.header_offset)
    name, extra = _LOCAL.unpack(file.read(_LOCAL.size))
    file.seek(name + extra, 1)
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise ValueError(f"the array {member.filename} is of version {version}")
    shape, by_columns, dtype = read(file)
    if dtype.hasobject:
        raise ValueError(f"the array {member.filename} holds objects")
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if file.tell() + size > member.header_offset + _LOCAL.size + name + extra + member.file_size:
        raise ValueError(f"the array {member.filename} is cut off")
    if not size or not shape:
        return np.frombuffer(file.read(size), dtype).reshape(shape)
    return np.memmap(path, dtype, "r", file.tell(), shape, order="F" if by_columns else "C")
