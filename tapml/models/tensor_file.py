"""Named tensors in one safetensors file, written and memory-mapped with numpy alone.

The format: a little-endian uint64 with the length of the header; the header, JSON, padded with
spaces; then the tensors' bytes, without gaps. Files are interchangeable with the `safetensors`
library. It is not used because it copies every tensor to numpy, lacks numpy's missing dtypes,
cannot read inside an archive, and writes only to a path.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from tapml.durable.files import replace_file, writing
from tapml_targets.dtype import dtype
from tapml_targets.errors import InputError

Array: TypeAlias = npt.NDArray[Any]

# Alignment of the data, and of every tensor whose size is a multiple of it (nearly all weights).
ALIGNMENT: Final = 64
MAX_HEADER_BYTES: Final = 16 << 20
_PIECE_BYTES: Final = 16 << 20
_POINTER: Final = b"version https://git-lfs"
_LARGEST_POINTER: Final = 1024
_PREFIX_BYTES: Final = 8
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
    """Something writable: an open file."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Write all of `data`."""


_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class StoredArray(msgspec.Struct, frozen=True):
    """A header's entry for a tensor; offsets are relative to the beginning of the data."""

    code: str = msgspec.field(name="dtype")
    shape: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=32)]
    data_offsets: tuple[_Count, _Count]

    @property
    def dtype(self) -> str:
        """Name of its dtype (:mod:`tapml_targets.dtype`)."""
        return _DTYPE_NAMES[self.code]


class TensorFile(Mapping[str, Array]):
    """The tensors of a file by name, as arrays that are read on use.

    An array has the numpy dtype of its raw bits (``uint16`` for bfloat16) and keeps the file
    mapped while it lives.

    Attributes
    ----------
    path
        The file.
    tensors
        The header's entry of each tensor.
    header_sha256
        Hash of all bytes before the data, hexadecimal.
    """

    def __init__(self, path: Path, header: bytes, data: Array) -> None:
        self.path = path
        self.tensors = _read_header(path, header[_PREFIX_BYTES:], data.nbytes)
        self.header_sha256 = hashlib.sha256(header).hexdigest()
        self._data = data

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return int(self._data.nbytes)

    def __getitem__(self, name: str) -> Array:
        stored = self.tensors[name]
        piece = self._data[slice(*stored.data_offsets)]
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
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write a file of tensors atomically.

    Parameters
    ----------
    path
        The file.
    tensors
        Arrays by name; a lazy mapping keeps one at a time in memory.
    dtypes
        The dtype of each (:mod:`tapml_targets.dtype`); an array holds its raw bits.
    progress
        Called with the number of tensor bytes written so far.

    Raises
    ------
    InputError
        If an array does not match its dtype, or the format does not have the dtype.
    SetupError
        If the file cannot be written.
    """
    with writing(path), replace_file(path) as partial, partial.open("wb") as stream:
        stream_tensors(stream, tensors, dtypes, progress=progress)


def stream_tensors(
    stream: Sink,
    tensors: Mapping[str, Array],
    dtypes: Mapping[str, str],
    *,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write the same bytes sequentially to an open file; see :func:`write_tensors`."""
    layout = _layout(tensors, dtypes)
    stream.write(_header(layout))
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


def tensors_header(tensors: Mapping[str, Array], dtypes: Mapping[str, str]) -> bytes:
    """The bytes that :func:`stream_tensors` writes before the data of the same tensors."""
    return _header(_layout(tensors, dtypes))


def open_tensors(
    path: Path, *, offset: int = 0, nbytes: int | None = None, writable: bool = False
) -> TensorFile:
    """Map a file of tensors; only its header is read before an array is used.

    Parameters
    ----------
    path
        The file, or an archive that stores it uncompressed.
    offset, nbytes
        Its range in the archive; by default the complete file.
    writable
        Whether the arrays are writable, without changing the file.

    Raises
    ------
    InputError
        If it cannot be read, or the header is too large, malformed, or does not match the file: a
        tensor is out of bounds, overlaps another, follows a gap, or has an unknown dtype or a size
        that contradicts its shape.
    """
    try:
        total = path.stat().st_size - offset
        nbytes = total if nbytes is None else nbytes
        with path.open("rb") as stream:
            stream.seek(offset)
            prefix = stream.read(_PREFIX_BYTES)
            if len(prefix) < _PREFIX_BYTES or nbytes > total:
                raise _damaged(path, f"it has {max(0, total)} bytes")
            if prefix == _POINTER[:_PREFIX_BYTES] and nbytes <= _LARGEST_POINTER:
                raise InputError(
                    f"{path} is a pointer of Git LFS and not the file: fetch it with git lfs pull"
                )
            length = int.from_bytes(prefix, "little")
            most = min(MAX_HEADER_BYTES, nbytes - _PREFIX_BYTES)
            if length > most:
                reason = f"its header claims {length} bytes: expected at most {most}"
                raise _damaged(path, reason)
            header = prefix + stream.read(length)
        start, size = offset + len(header), nbytes - len(header)
        # A plain array, whose memory is the file; a mapping cannot be empty.
        data = (
            np.asarray(np.memmap(path, np.uint8, "c" if writable else "r", start, (size,)))
            if size
            else np.empty(0, np.uint8)
        )
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    return TensorFile(path, header, data)


def _layout(tensors: Mapping[str, Array], dtypes: Mapping[str, str]) -> dict[str, StoredArray]:
    """Tensors in file order: aligned ones first, then by decreasing element size."""
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
            raise InputError(f"a tensor cannot have the name {name!r}, which the format reserves")
        sizes[name] = (kind, array.shape, array.nbytes)
    layout: dict[str, StoredArray] = {}
    start = 0

    def place(name: str) -> tuple[bool, int]:
        kind, _, nbytes = sizes[name]
        return nbytes % ALIGNMENT != 0, -dtype(kind).itemsize

    for name in sorted(sizes, key=place):
        kind, shape, nbytes = sizes[name]
        layout[name] = StoredArray(_FORMAT_NAMES[kind], shape, (start, start + nbytes))
        start += nbytes
    return layout


def _header(layout: Mapping[str, StoredArray]) -> bytes:
    text = msgspec.json.encode(layout)
    text += b" " * (-(_PREFIX_BYTES + len(text)) % ALIGNMENT)
    if len(text) > MAX_HEADER_BYTES:
        raise InputError(
            f"{len(layout)} tensors need a header of {len(text)} bytes: expected at most "
            f"{MAX_HEADER_BYTES}"
        )
    return len(text).to_bytes(_PREFIX_BYTES, "little") + text


def _read_header(path: Path, text: bytes, data_bytes: int) -> dict[str, StoredArray]:
    try:
        header = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, "its header is not JSON of named tensors") from error
    header.pop(_METADATA, None)
    tensors = {name: _stored(path, name, entry) for name, entry in header.items()}
    end = 0
    for name, stored in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        if stored.data_offsets[0] != end:
            what = "overlaps another" if stored.data_offsets[0] < end else "has a gap before it"
            raise _damaged(path, f"tensor {name[:100]!r} {what}")
        end = stored.data_offsets[1]
    if end != data_bytes:
        raise _damaged(path, f"its tensors need {end} bytes, it has {data_bytes}")
    return tensors


def _stored(path: Path, name: str, entry: msgspec.Raw) -> StoredArray:
    try:
        stored = msgspec.json.decode(entry, type=StoredArray)
        if stored.code not in _DTYPE_NAMES:
            raise InputError(
                f"tensor {name[:100]!r} in {path} has dtype {stored.code[:20]!r}: expected one of "
                f"{', '.join(_DTYPE_NAMES)}; save a quantized model unquantized"
            )
        start, end = stored.data_offsets
        if math.prod(stored.shape) * dtype(stored.dtype).itemsize == end - start:
            return stored
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    raise _damaged(path, f"the entry of tensor {name[:100]!r} is not valid")


def _damaged(path: Path, reason: str) -> InputError:
    return InputError(f"{path} is not a valid safetensors file ({reason}): make or fetch it again")
