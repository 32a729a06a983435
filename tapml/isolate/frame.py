"""Messages between processes: plain data, bytes and numpy arrays over a Unix socket.

A message is JSON followed by bytes and arrays. The receiver needs only the standard library, and
numpy if an array arrives. A message longer than ``INLINE_BYTES`` is written to an anonymous memory
file, and the socket carries its descriptor. So every message fits in the socket's buffer, and
nothing remains if either process is killed.
"""

from __future__ import annotations

import array
import contextlib
import json
import math
import mmap
import os
import socket
import struct
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from tapml_targets.errors import InputError, ProtocolError

# Whether the body is in a file, the number of descriptors, and the body's size in bytes.
HEADER: Final = struct.Struct("<?B6xQ")
INLINE_BYTES: Final = 1 << 15
_LENGTH: Final = struct.Struct("<Q")
_READ_BYTES: Final = 1 << 16
# More than the two descriptors that a message has at most.
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(8 * 4)
_ALIGNMENT: Final = 64
# Booleans, integers, floats and complex numbers; other dtypes could hold objects.
_KINDS: Final = "biufc"
# A dictionary with only this key encodes bytes, an array, or a dictionary that has the key.
_ESCAPE: Final = "$"

Parts: TypeAlias = "list[bytes | memoryview]"


class Received(NamedTuple):
    """A message and its descriptors, which the receiver must close."""

    message: Any
    descriptors: tuple[int, ...]


def unnamed_file() -> int:
    """A new anonymous file, in memory if the system supports it; the caller closes it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tapml", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def encode(message: object) -> Parts:
    """Encode a message body in parts, without copying contiguous arrays.

    Raises
    ------
    InputError
        If it holds something other than None, numbers, text, bytes, lists, dictionaries with
        text keys, and numpy arrays of numbers.
    """
    encoder = _Encoder()
    plain = encoder.plain(message, "the message")
    head = json.dumps([plain, encoder.kinds], separators=(",", ":")).encode()
    contents: Parts = [_LENGTH.pack(len(head)) + head, *encoder.contents]
    parts: Parts = []
    for content in contents:
        parts += [content, bytes(_aligned(len(content)) - len(content))]
    return parts


def decode(body: memoryview) -> Any:
    """Decode a message body; bytes and arrays are copied.

    Raises
    ------
    ProtocolError
        If :func:`encode` cannot have written it.
    """
    try:
        (size,) = _LENGTH.unpack_from(body)
        start = _aligned(_LENGTH.size + size)
        plain, kinds = json.loads(bytes(body[_LENGTH.size : _LENGTH.size + size]))
        contents = []
        for nbytes, dtype, shape in kinds:
            contents.append(_content(body[start : start + nbytes], nbytes, dtype, shape))
            start += _aligned(nbytes)
        return _restored(plain, contents)
    except (ValueError, TypeError, LookupError, struct.error, RecursionError, MemoryError) as error:
        raise ProtocolError(f"a message cannot be read: {error}") from error


@contextlib.contextmanager
def sealed(parts: Parts, descriptors: Sequence[int] = ()) -> Iterator[tuple[bytes, Sequence[int]]]:
    """The bytes and descriptors of a message, which can be sent several times."""
    size = sum(map(len, parts))
    if size <= INLINE_BYTES:
        yield HEADER.pack(False, len(descriptors), size) + b"".join(parts), descriptors
        return
    file = unnamed_file()
    try:
        for part in parts:
            _write_all(file, memoryview(part))
        yield HEADER.pack(True, 1 + len(descriptors), size), [file, *descriptors]
    finally:
        os.close(file)


class Decoder:
    """Reads messages from a stream of bytes and descriptors that arrives in pieces."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._descriptors: deque[int] = deque()

    def feed(self, data: bytes, descriptors: Sequence[int] = ()) -> list[Received]:
        """Add received data and return every complete message. Raises ProtocolError."""
        self._buffer += data
        self._descriptors += descriptors
        messages = []
        while len(self._buffer) >= HEADER.size:
            in_file, count, size = HEADER.unpack_from(self._buffer)
            if not in_file and size > INLINE_BYTES:
                raise ProtocolError(
                    f"expected a message of at most {INLINE_BYTES} bytes, got one of {size}"
                )
            end = HEADER.size + (0 if in_file else size)
            if len(self._buffer) < end:
                break
            if count > len(self._descriptors) or (in_file and not count):
                raise ProtocolError(f"a message arrived without its {count} descriptors")
            body = memoryview(bytes(self._buffer[HEADER.size : end]))
            del self._buffer[:end]
            came = [self._descriptors.popleft() for _ in range(count)]
            message = _read_file(came.pop(0), size) if in_file else decode(body)
            messages.append(Received(message, tuple(came)))
        return messages

    def close(self) -> None:
        """Close the descriptors of incomplete messages."""
        while self._descriptors:
            os.close(self._descriptors.popleft())


class Channel:
    """One end of a Unix socket that carries messages."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._decoder = Decoder()

    def fileno(self) -> int:
        """The socket's descriptor, for a selector."""
        return self._socket.fileno()

    def send(self, parts: Parts, descriptors: Sequence[int] = ()) -> None:
        """Send one message."""
        with sealed(parts, descriptors) as message:
            self.send_sealed(*message)

    def send_sealed(self, data: bytes, descriptors: Sequence[int]) -> None:
        """Send a message that :func:`sealed` made."""
        sent = socket.send_fds(self._socket, [data], descriptors) if descriptors else 0
        self._socket.sendall(memoryview(data)[sent:])

    def receive(self, *, wait: bool) -> list[Received]:
        """The messages that one read completes.

        Raises EOFError if the other end is closed, ProtocolError if it sent anything else.
        """
        flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0) | (0 if wait else socket.MSG_DONTWAIT)
        try:
            # Not socket.recv_fds: it ignores the flags.
            data, ancillary, _, _ = self._socket.recvmsg(_READ_BYTES, _ANCILLARY_BYTES, flags)
        except BlockingIOError:
            return []
        except ConnectionError as error:
            raise EOFError("the other end is closed") from error
        if not data:
            raise EOFError("the other end is closed")
        came = array.array("i")
        for _, _, content in ancillary:
            came.frombytes(content[: len(content) // came.itemsize * came.itemsize])
        return self._decoder.feed(data, came)

    @property
    def closed(self) -> bool:
        """Whether this end is closed."""
        return self._socket.fileno() < 0

    def close(self) -> None:
        """Close this end."""
        self._decoder.close()
        self._socket.close()


class _Encoder:
    def __init__(self) -> None:
        self.kinds: list[tuple[int, str, tuple[int, ...]]] = []
        self.contents: list[memoryview] = []

    def plain(self, value: Any, place: str) -> Any:
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, (list, tuple)):
            return [self.plain(item, f"{place}[{index}]") for index, item in enumerate(value)]
        if isinstance(value, dict):
            return self._dictionary(value, place)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self._attach(memoryview(value).cast("B"), "", ())
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic):
            return self.plain(value.item(), place)
        if numpy is not None and isinstance(value, numpy.ndarray):
            if value.dtype.kind not in _KINDS:
                raise InputError(
                    f"{place} is an array of {value.dtype}, which cannot be sent; send its raw "
                    "bits as numbers with view()"
                )
            flat = numpy.asarray(value, order="C").reshape(-1).view(numpy.uint8)
            return self._attach(flat.data, value.dtype.str, value.shape)
        raise InputError(
            f"{place} is a {type(value).__qualname__}; a job takes and returns None, numbers, "
            "text, bytes, lists, dictionaries and numpy arrays"
        )

    def _dictionary(self, value: dict[Any, Any], place: str) -> dict[str, Any]:
        for key in value:
            if not isinstance(key, str):
                raise InputError(f"{place} has the key {key!r}; keys must be text")
        found = {key: self.plain(item, f"{place}[{key!r}]") for key, item in value.items()}
        return {_ESCAPE: list(found.items())} if _ESCAPE in found else found

    def _attach(self, content: memoryview, dtype: str, shape: tuple[int, ...]) -> dict[str, int]:
        self.kinds.append((len(content), dtype, shape))
        self.contents.append(content)
        return {_ESCAPE: len(self.contents) - 1}


def _restored(value: Any, contents: list[Any]) -> Any:
    if isinstance(value, list):
        return [_restored(item, contents) for item in value]
    if not isinstance(value, dict):
        return value
    escaped = value.get(_ESCAPE)
    if isinstance(escaped, int):
        return contents[escaped]
    items = value.items() if escaped is None else escaped
    return {key: _restored(item, contents) for key, item in items}


def _content(content: memoryview, nbytes: int, dtype: str, shape: list[int]) -> Any:
    if len(content) != nbytes:
        raise ValueError(f"expected {nbytes} bytes, got {len(content)}")
    if not dtype:
        return bytes(content)
    try:
        import numpy
    except ImportError as error:
        raise ProtocolError(
            f"an array arrived, but {sys.executable} has no numpy; install numpy there"
        ) from error
    kind = numpy.dtype(dtype)
    if kind.kind not in _KINDS or math.prod(shape) * kind.itemsize != nbytes:
        raise ValueError(f"{nbytes} bytes are not an array of {dtype} with shape {shape}")
    return numpy.ndarray(shape, kind, content).copy()


def _read_file(descriptor: int, size: int) -> Any:
    try:
        found = os.fstat(descriptor).st_size
        if found != size or not size:
            raise ProtocolError(f"expected a message of {size} bytes, got a file of {found}")
        return decode(memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)))
    except OSError as error:
        raise ProtocolError(f"a message of {size} bytes cannot be mapped: {error}") from error
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, view: memoryview) -> None:
    while view:
        view = view[os.write(descriptor, view) :]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
