"""The scalars of a sequence of launches, in one buffer."""

from __future__ import annotations

import struct
from typing import Any, Final

from tapml_targets.driver import BoundLaunch, BufferUse, ScalarUse
from tapml_targets.errors import InputError
from tapml_targets.webgpu.memory import rounded
from tapml_targets.webgpu.module_text import ModuleText
from tapml_targets.webgpu.programs import LoadedKernel

_FORMATS: Final = {"int32": "<i", "uint32": "<I", "float32": "<f"}
# Every implementation can bind this size, whatever the struct's.
_LEAST: Final = 16


class Uniforms:
    """Each distinct set of scalars once, at an aligned offset."""

    def __init__(self, alignment: int) -> None:
        self._alignment = alignment
        self._places: dict[bytes, int] = {}
        self._end = 0

    def place(self, launch: BoundLaunch) -> int:
        """Offset of a launch's scalars; 0 for a kernel without any.

        Raises
        ------
        InputError
            If they are not the kernel's.
        """
        kernel: LoadedKernel = launch.kernel
        text = kernel.text
        scalars = launch.arguments[len(text.access) :]
        given = [use for use in scalars if isinstance(use, ScalarUse)]
        if len(given) != len(scalars) or tuple(use.dtype for use in given) != text.scalars:
            raise InputError(
                f"kernel {kernel.name!r} takes {len(text.access)} buffers and the scalars "
                f"({', '.join(text.scalars)}); got {kinds(launch)}"
            )
        if not text.has_uniform:
            return 0
        data = b""
        for use in given:
            try:
                data += struct.pack(_FORMATS[use.dtype], use.value)
            except (struct.error, OverflowError):
                raise InputError(
                    f"kernel {kernel.name!r}: the scalar {use.value} does not fit {use.dtype}"
                ) from None
        if text.packs_grid:
            data += struct.pack("<I", launch.grid[0] - 1)
        data = data.ljust(uniform_bytes(text), b"\0")
        place = self._places.get(data)
        if place is None:
            place = self._places[data] = self._end
            self._end += rounded(len(data), self._alignment)
        return place

    def memory(self, wgpu: Any, device: Any) -> Any:
        """A buffer with all of them on a device; None if there are none."""
        if not self._places:
            return None
        content = bytearray(self._end)
        for data, place in self._places.items():
            content[place : place + len(data)] = data
        usage = wgpu.BufferUsage
        memory = device.create_buffer(size=len(content), usage=usage.UNIFORM | usage.COPY_DST)
        device.queue.write_buffer(memory, 0, content)
        return memory


def uniform_bytes(text: ModuleText) -> int:
    """Bytes that a kernel's uniform binding shows."""
    return rounded(4 * (len(text.scalars) + text.packs_grid), _LEAST)


def kinds(launch: BoundLaunch) -> str:
    """The kinds of a launch's arguments, for messages."""
    words = [
        use.dtype
        if isinstance(use, ScalarUse)
        else "a buffer"
        if isinstance(use, BufferUse)
        else "a whole tensor"
        for use in launch.arguments
    ]
    return ", ".join(words) or "nothing"
