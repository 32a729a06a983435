"""Reads device memory through one mappable buffer that is reused."""

from __future__ import annotations

from typing import Any, Final

from tapml_targets.webgpu.commands import Copy
from tapml_targets.webgpu.memory import WORD, rounded
from tapml_targets.webgpu.submission import Submissions

# Larger pieces are slower: they do not fit the processor's cache.
_PIECE: Final = 4 << 20
_LEAST: Final = 4 << 10


class Staging:
    """The mappable buffer of one open device; a copy to it ends a submission."""

    def __init__(self, wgpu: Any, device: Any, submissions: Submissions) -> None:
        self._wgpu = wgpu
        self._device = device
        self._submissions = submissions
        self._memory: Any = None
        self._nbytes = 0
        self._fence: Any = None

    def read_into(self, source: Any, byte_offset: int, target: memoryview) -> None:
        """Wait for the work before this point and copy bytes to the host."""
        done, nbytes = 0, len(target)
        while done < nbytes:
            rest = (byte_offset + done) % WORD
            start = byte_offset + done - rest
            size = min(_PIECE - rest, nbytes - done)
            with self._mapped(source, start, rounded(rest + size)) as view:
                target[done : done + size] = view[rest : rest + size]
            done += size

    def wait(self) -> None:
        """Wait for all that was submitted: a read, since wgpu's own wait does not work."""
        if self._fence is None:
            usage = self._wgpu.BufferUsage
            self._fence = self._device.create_buffer(size=WORD, usage=usage.COPY_SRC)
        with self._mapped(self._fence, 0, WORD):
            pass

    def release(self) -> None:
        """Release the memory."""
        self._memory = self._fence = None
        self._nbytes = 0

    def _mapped(self, source: Any, start: int, size: int) -> _Mapped:
        if size > self._nbytes:
            usage = self._wgpu.BufferUsage
            nbytes = max(_LEAST, 1 << (size - 1).bit_length())
            self._memory, self._nbytes = None, 0
            self._memory = self._device.create_buffer(
                size=nbytes, usage=usage.MAP_READ | usage.COPY_DST
            )
            self._nbytes = nbytes
        memory = self._memory
        self._submissions.submit([Copy(source, start, memory, 0, size)])
        return _Mapped(memory, size)


class _Mapped:
    """The first `size` bytes of a mappable buffer, as the device left them."""

    def __init__(self, memory: Any, size: int) -> None:
        self._memory = memory
        self._size = size

    def __enter__(self) -> memoryview:
        memory = self._memory
        # The copy to it has been submitted, so the synchronising mapping call is not needed.
        memory.map_async("READ_NOSYNC", 0, self._size).sync_wait()
        view: memoryview = memory.read_mapped(0, self._size, copy=False)
        return view

    def __exit__(self, *_: object) -> None:
        self._memory.unmap()
