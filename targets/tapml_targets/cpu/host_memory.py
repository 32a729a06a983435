"""Host memory as kernels of the cpu platform take it: aligned bytes and DLPack views on them.

Without numpy, which has no wheels for some of the boards that could serve.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from typing import Any, Final

from tapml_targets.dtype import dtype
from tapml_targets.errors import InputError
from tapml_targets.memory_commands import DeviceMemory

# Compiled code assumes this of a tensor's start.
ALIGNMENT: Final = 64
# Memory mapped from the system costs a few microseconds more and is not cleared in advance.
_LARGE_BYTES: Final = 1 << 20


class HostBuffer(DeviceMemory):
    """Memory on the host whose first byte is aligned.

    Attributes
    ----------
    address
        Start address.
    bytes
        Its content.
    """

    __slots__ = ("address", "bytes")

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        size = nbytes + ALIGNMENT
        room = bytearray(size) if size < _LARGE_BYTES else _from_system(size)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(room))
        start = -begin % ALIGNMENT
        self.address = begin + start
        self.bytes = memoryview(room)[start : start + max(1, nbytes)]

    def window(self, byte_offset: int, nbytes: int, what: str) -> memoryview:
        """The bytes of a window.

        Raises
        ------
        InputError
            If the window is not within the buffer.
        """
        self.check(byte_offset, nbytes, what)
        return self.bytes[byte_offset : byte_offset + nbytes]

    def release(self) -> None:
        """Release the memory; a view that a kernel holds keeps it."""
        super().release()
        self.bytes = memoryview(b"")


def _from_system(nbytes: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, nbytes)
    except OSError:
        raise MemoryError(f"the system has no {nbytes} bytes") from None


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _ManagedTensor(ctypes.Structure):
    _fields_ = (
        ("tensor", _Tensor),
        ("manager_context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


# DLPack's type codes.
_CODES: Final = {
    **{f"int{bits}": 0 for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": 1 for bits in (8, 16, 32, 64)},
    **{f"float{bits}": 2 for bits in (16, 32, 64)},
    "bfloat16": 4,
    "bool": 6,
    "float8_e4m3fn": 10,
    "float8_e5m2": 12,
}
_HOST: Final = 1
_CAPSULE_NAME: Final = b"dltensor"
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


_alive: Final[dict[int, TensorView]] = {}
"""Views whose memory a consumer holds, by the address of their DLPack structure."""


def _forget(address: int) -> None:
    _alive.pop(address, None)


_release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_forget)


class TensorView:
    """A DLPack producer over a window of a :class:`HostBuffer`."""

    def __init__(
        self, buffer: HostBuffer, byte_offset: int, shape: tuple[int, ...], name: str
    ) -> None:
        kind = dtype(name)
        self.memory = buffer.window(byte_offset, kind.nbytes(math.prod(shape)), "tensor")
        self.shape = (ctypes.c_int64 * max(1, len(shape)))(*shape)
        self.managed = _ManagedTensor(
            _Tensor(
                buffer.address + byte_offset,
                _HOST,
                0,
                len(shape),
                _DataType(_CODES[name], kind.bits, 1),
                self.shape,
                None,
                0,
            ),
            None,
            ctypes.cast(_release, ctypes.c_void_p),
        )

    def __dlpack__(self, **_: Any) -> Any:
        address = ctypes.addressof(self.managed)
        _alive[address] = self
        return _new_capsule(address, _CAPSULE_NAME, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_HOST, 0)


def dlpack_view(
    buffer: HostBuffer, byte_offset: int, shape: tuple[int, ...], name: str
) -> TensorView:
    """A tensor on a window of `buffer` that offers ``__dlpack__``.

    Raises
    ------
    InputError
        If the window is outside the buffer, starts where compiled code cannot read, or has a
        dtype that is packed below one byte.
    """
    if byte_offset % ALIGNMENT:
        raise InputError(
            f"a tensor of the cpu platform must start at a multiple of {ALIGNMENT} bytes, "
            f"this one starts at {byte_offset}"
        )
    if dtype(name).packing != 1:
        raise InputError(f"the cpu platform takes no {name} tensors")
    return TensorView(buffer, byte_offset, shape, name)
