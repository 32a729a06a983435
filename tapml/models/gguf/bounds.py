"""Walks through a GGUF header before the library reads it.

The library believes every length in the file: a false one makes it loop for ever or read beyond the
end without an error. The walk holds every length against the file's size and reads no content.
Source: ``ggml/docs/gguf.md``, versions 2 and 3.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO, Final

from tapml_targets.errors import InputError

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_SCALARS: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING: Final = 8
_ARRAY: Final = 9
_MOST_FIELDS: Final = 1 << 12
_MOST_TENSORS: Final = 1 << 17
_MOST_ITEMS: Final = 1 << 22
_MOST_NAME: Final = 1 << 16
_MOST_DIMENSIONS: Final = 4


class _Walk:
    def __init__(self, stream: BinaryIO, size: int) -> None:
        self.stream = stream
        self.left = size

    def number(self, code: str) -> int:
        width = struct.calcsize(code)
        self.left -= width
        data = self.stream.read(width)
        if self.left < 0 or len(data) < width:
            raise ValueError("it ends within its header")
        return int(struct.unpack("<" + code, data)[0])

    def skip(self, nbytes: int) -> None:
        self.left -= nbytes
        if self.left < 0:
            raise ValueError("it ends within its header")
        self.stream.seek(nbytes, 1)

    def counted(self, most: int, what: str) -> int:
        count = self.number("Q")
        if count > min(most, self.left):
            raise ValueError(f"it claims {count} {what}: expected at most {min(most, self.left)}")
        return count

    def value(self, kind: int) -> None:
        if kind in _SCALARS:
            self.skip(_SCALARS[kind])
        elif kind == _STRING:
            self.skip(self.counted(self.left, "bytes of a text"))
        elif kind == _ARRAY:
            inner = self.number("I")
            if inner == _ARRAY:
                raise ValueError("it has an array of arrays")
            count = self.counted(_MOST_ITEMS, "items of an array")
            if inner in _SCALARS:
                self.skip(count * _SCALARS[inner])
                return
            for _ in range(count):
                self.value(inner)
        else:
            raise ValueError(f"it has a value of the unknown kind {kind}")


def check_bounds(path: Path) -> None:
    """Check that a file's header is whole and that its lengths fit the file.

    Raises
    ------
    InputError
        If not; the message says where it ends or what it claims.
    """
    try:
        with path.open("rb") as stream:
            _check(_Walk(stream, path.stat().st_size))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path} is not a whole GGUF file ({error}): fetch it again") from error


def _check(walk: _Walk) -> None:
    walk.left -= len(_MAGIC)
    if walk.stream.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("it does not begin with GGUF")
    version = walk.number("I")
    if version not in _VERSIONS:
        raise ValueError(f"version {version}: expected 2 or 3, little-endian")
    tensors = walk.counted(_MOST_TENSORS, "tensors")
    for _ in range(walk.counted(_MOST_FIELDS, "fields")):
        walk.skip(walk.counted(_MOST_NAME, "bytes of a name"))
        walk.value(walk.number("I"))
    for _ in range(tensors):
        walk.skip(walk.counted(_MOST_NAME, "bytes of a name"))
        dimensions = walk.number("I")
        if dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"it has a tensor of {dimensions} dimensions")
        walk.skip(8 * dimensions + 4 + 8)
