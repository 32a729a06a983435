"""Named tensors in one file, in the safetensors format, written and mapped with numpy alone.

The base install has no safetensors library, and a session or a package must open its weights there.
The format: a little-endian uint64 with the length of the header; the header, JSON, padded with
spaces; then the tensors' bytes, without gaps. The library reads what is written here and the other
way round.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tapml.durable.files import replace_file, writing
from tapml_targets.dtype import dtype
from tapml_targets.errors import InputError

Array: TypeAlias = npt.NDArray[Any]

# Data begins on a multiple of it, and so does every tensor whose size is one (nearly all weights).
ALIGNMENT: Final = 64
MAX_HEADER_BYTES: Final = 16 << 20
_MAX_DIMENSIONS: Final = 32
_PIECE_BYTES: Final = 16 << 20
_PREFIX: Final = struct.Struct("<Q")
_METADATA: Final = "__metadata__"
_FORMAT_NAMES: Final = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_DTYPE_NAMES: Final = {code: name for name, code in _FORMAT_NAMES.items()}


class Sink(Protocol):
    """What takes bytes: an open file."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Take all of `data`."""


@dataclass(frozen=True)
class StoredArray:
    """Where one tensor lies: `start` and `end` in bytes from the beginning of the data."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class TensorFile(Mapping[str, Array]):
    """The tensors of a file by name, as read-only arrays that are read when they are used.

    An array has the numpy dtype of its raw bits (``uint16`` for bfloat16) and keeps the file
    mapped while it lives.

    Attributes
    ----------
    path
        The file.
    tensors
        What the header says of each tensor.
    metadata
        The header's own texts by name.
    """

    def __init__(
        self, path: Path, data: Array, tensors: dict[str, StoredArray], metadata: dict[str, str]
    ) -> None:
        self.path = path
        self.tensors = tensors
        self.metadata = metadata
        self._data = data

    @property
    def dtypes(self) -> dict[str, str]:
        """Name of each tensor's dtype (:mod:`tapml_targets.dtype`)."""
        return {name: tensor.dtype for name, tensor in self.tensors.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return int(self._data.nbytes)

    def __getitem__(self, name: str) -> Array:
        stored = self.tensors[name]
        piece = self._data[stored.start : stored.end]
        kind = np.dtype(dtype(stored.dtype).numpy_name).newbyteorder("<")
        return piece.view(kind).reshape(stored.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


def write_tensors(
    path: Path,
    tensors: Mapping[str, Array],
    dtypes: Mapping[str, str],
    *,
    metadata: Mapping[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write a file of tensors; a reader sees all of it or what was there before.

    Parameters
    ----------
    path
        The file.
    tensors
        Arrays by name; one at a time is in memory where the mapping makes them.
    dtypes
        The dtype of each (:mod:`tapml_targets.dtype`); an array holds its raw bits.
    metadata
        Texts that go with them.
    progress
        Called with the number of tensor bytes written so far.

    Raises
    ------
    InputError
        If an array is not of its dtype, or a dtype has no place in the format.
    SetupError
        If the file cannot be written.
    """
    with writing(path), replace_file(path) as partial, partial.open("wb") as stream:
        stream_tensors(stream, tensors, dtypes, metadata=metadata, progress=progress)


def stream_tensors(
    stream: Sink,
    tensors: Mapping[str, Array],
    dtypes: Mapping[str, str],
    *,
    metadata: Mapping[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write the same bytes, front to back, into an open file; see :func:`write_tensors`."""
    layout = _layout(tensors, dtypes)
    stream.write(_header(layout, metadata or {}))
    done = 0
    for name, stored in layout.items():
        kind = np.dtype(dtype(stored.dtype).numpy_name).newbyteorder("<")
        array = np.ascontiguousarray(tensors[name], dtype=kind)
        data = array.reshape(-1).view(np.uint8).data
        for start in range(0, len(data), _PIECE_BYTES):
            piece = data[start : start + _PIECE_BYTES]
            stream.write(piece)
            done += len(piece)
            if progress is not None:
                progress(done)


def tensors_header(
    tensors: Mapping[str, Array],
    dtypes: Mapping[str, str],
    *,
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """The bytes that :func:`stream_tensors` writes before the data of the same tensors."""
    return _header(_layout(tensors, dtypes), metadata or {})


def open_tensors(path: Path, *, offset: int = 0, nbytes: int | None = None) -> TensorFile:
    """Map a file of tensors; nothing but its header is read before an array is used.

    Parameters
    ----------
    path
        The file, or one that holds it (an archive that stores it as it is).
    offset, nbytes
        Where in it: by default all of it.

    Raises
    ------
    InputError
        If it cannot be read, or the header is too large, malformed, or does not fit the file: a
        tensor out of its bounds, over another, with a gap before it, of an unknown dtype, of a
        size that its shape does not have.
    """
    try:
        total = path.stat().st_size - offset
        nbytes = total if nbytes is None else nbytes
        with path.open("rb") as stream:
            stream.seek(offset)
            prefix = stream.read(_PREFIX.size)
            if len(prefix) < _PREFIX.size or nbytes > total:
                raise _damaged(path, f"it ends after {max(0, total)} bytes")
            (length,) = _PREFIX.unpack(prefix)
            room = nbytes - _PREFIX.size
            if length > min(MAX_HEADER_BYTES, room):
                raise _damaged(
                    path,
                    f"its header claims {length} bytes: expected at most "
                    f"{min(MAX_HEADER_BYTES, room)}",
                )
            text = stream.read(length)
        tensors, metadata = _read_header(path, text, room - length)
        data = _map(path, offset + _PREFIX.size + length, room - length)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    return TensorFile(path, data, tensors, metadata)


def _map(path: Path, offset: int, nbytes: int) -> Array:
    if nbytes == 0:
        return np.empty(0, np.uint8)
    # An array like any other, whose memory happens to be the file.
    return np.asarray(np.memmap(path, np.uint8, "r", offset, (nbytes,)))


def _layout(tensors: Mapping[str, Array], dtypes: Mapping[str, str]) -> dict[str, StoredArray]:
    """Tensors in the order of the file: aligned ones first, then by falling size of an element."""
    sizes: dict[str, tuple[str, tuple[int, ...], int]] = {}
    for name in tensors:
        array = tensors[name]
        kind = dtypes.get(name)
        if kind is None or kind not in _FORMAT_NAMES:
            known = ", ".join(_FORMAT_NAMES)
            raise InputError(f"tensor {name!r}: expected one of the dtypes {known}, got {kind}")
        expected = dtype(kind).numpy_name
        if array.dtype.name != expected:
            raise InputError(
                f"tensor {name!r} of dtype {kind}: expected an array of {expected}, got "
                f"{array.dtype.name}"
            )
        if name == _METADATA:
            raise InputError(
                f"a tensor cannot be called {name!r}: the format has another use for it"
            )
        sizes[name] = (kind, array.shape, array.nbytes)
    layout: dict[str, StoredArray] = {}
    start = 0

    def place(name: str) -> tuple[bool, int]:
        kind, _, nbytes = sizes[name]
        return nbytes % ALIGNMENT != 0, -dtype(kind).itemsize

    for name in sorted(sizes, key=place):
        kind, shape, nbytes = sizes[name]
        layout[name] = StoredArray(kind, shape, start, start + nbytes)
        start += nbytes
    return layout


def _header(layout: Mapping[str, StoredArray], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    for name, stored in layout.items():
        entries[name] = {
            "dtype": _FORMAT_NAMES[stored.dtype],
            "shape": list(stored.shape),
            "data_offsets": [stored.start, stored.end],
        }
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(_PREFIX.size + len(text)) % ALIGNMENT)
    if len(text) > MAX_HEADER_BYTES:
        raise InputError(
            f"{len(layout)} tensors need a header of {len(text)} bytes: expected at most "
            f"{MAX_HEADER_BYTES}"
        )
    return _PREFIX.pack(len(text)) + text


def _read_header(
    path: Path, text: bytes, data_bytes: int
) -> tuple[dict[str, StoredArray], dict[str, str]]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise _damaged(path, "its header names something twice")
        return found

    try:
        header = json.loads(text.decode(), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, "its header is not JSON") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is no JSON object")
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _damaged(path, "its metadata are not texts by name")
    tensors = {name: _stored(path, name, entry) for name, entry in header.items()}
    end = 0
    for name, stored in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if stored.start != end:
            what = "lies over another" if stored.start < end else "has a gap before it"
            raise _damaged(path, f"tensor {name[:100]!r} {what}")
        end = stored.end
    if end != data_bytes:
        raise _damaged(path, f"its tensors need {end} bytes, it has {data_bytes}")
    return tensors, metadata


def _stored(path: Path, name: str, entry: Any) -> StoredArray:
    match entry:
        case {"dtype": str(code), "shape": [*shape], "data_offsets": [start, end]}:
            numbers = (*shape, start, end)
            kind = _DTYPE_NAMES.get(code)
            if kind is None:
                known = ", ".join(_DTYPE_NAMES)
                raise InputError(
                    f"tensor {name[:100]!r} in {path} has dtype {code[:20]!r}: expected one of "
                    f"{known}"
                )
            if (
                len(shape) <= _MAX_DIMENSIONS
                # A bool is an int for Python, and none for JSON.
                and all(type(each) is int and 0 <= each < 1 << 63 for each in numbers)
                and math.prod(shape) * dtype(kind).itemsize == end - start
            ):
                return StoredArray(kind, tuple(shape), start, end)
    raise _damaged(path, f"the entry of tensor {name[:100]!r} makes no sense")


def _damaged(path: Path, reason: str) -> InputError:
    return InputError(f"{path} is not a whole safetensors file ({reason}): make or fetch it again")
