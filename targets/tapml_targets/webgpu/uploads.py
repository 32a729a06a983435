"""Writes any number of bytes from the host to any offset.

WebGPU writes multiples of 4 bytes at multiples of 4. The remainder at either end goes to other
memory first, and from there by a kernel that keeps the neighbouring bytes.
"""

from __future__ import annotations

from typing import Any, Final

from tapml_targets.webgpu.commands import Copy
from tapml_targets.webgpu.memory import WORD, ByteMover, DeviceBuffer
from tapml_targets.webgpu.staging import Staging
from tapml_targets.webgpu.submission import Submissions

# wgpu keeps a copy of written data until the next submission has ended.
_SUBMIT_BYTES: Final = 1 << 20
_WAIT_BYTES: Final = 128 << 20
_BLOCK: Final = 1 << 20
# Smaller fills are written directly; larger ones are written once and copied.
_FILL_BY_WRITING: Final = 64 << 10


class Uploader:
    """Writes and fills buffers of one open device."""

    def __init__(
        self,
        queue: Any,
        mover: ByteMover,
        staging: Staging,
        submissions: Submissions,
    ) -> None:
        self._queue = queue
        self._mover = mover
        self._staging = staging
        self._submissions = submissions
        self._unsubmitted = self._unwaited = 0

    def waited(self) -> None:
        """Note that all work has ended, with the copies that wgpu kept."""
        self._unsubmitted = self._unwaited = 0

    def write(self, buffer: DeviceBuffer, byte_offset: int, data: memoryview) -> None:
        """Copy `data`, which the caller may reuse afterwards."""
        head = min(-byte_offset % WORD, len(data))
        body = (len(data) - head) // WORD * WORD
        if head:
            self._part(buffer, byte_offset, data[:head])
        if body:
            self._words(buffer.memory, byte_offset + head, data[head : head + body])
        if head + body < len(data):
            self._part(buffer, byte_offset + head + body, data[head + body :])

    def fill(self, buffer: DeviceBuffer, byte_offset: int, nbytes: int, pattern: bytes) -> None:
        """Repeat `pattern`, which is not empty, over a window."""
        length = len(pattern)
        # A block begins with the pattern, and if it is copied, at a word as well.
        block = memoryview(pattern * max(1, min(_BLOCK, nbytes + length) // length))
        if nbytes <= _FILL_BY_WRITING or byte_offset % WORD or length > _BLOCK // WORD:
            for start in range(0, nbytes, len(block)):
                self.write(buffer, byte_offset + start, block[: nbytes - start])
            return
        block = block[: len(block) // (WORD * length) * WORD * length]
        between = self._mover.room(len(block))
        self._words(between, 0, block)
        whole = nbytes // WORD * WORD
        self._submissions.add(
            [
                Copy(between, 0, buffer.memory, byte_offset + at, min(len(block), whole - at))
                for at in range(0, whole, len(block))
            ],
            lambda: f"filling {nbytes} bytes",
        )
        if whole < nbytes:
            phase = whole % length
            rest = (pattern[phase:] + pattern * WORD)[: nbytes - whole]
            self.write(buffer, byte_offset + whole, memoryview(rest))

    def _words(self, memory: Any, byte_offset: int, data: memoryview) -> None:
        # A write precedes later submissions, so pending commands go first.
        self._submissions.submit()
        self._queue.write_buffer(memory, byte_offset, data)
        self._unsubmitted += len(data)
        self._unwaited += len(data)
        if self._unwaited > _WAIT_BYTES:
            self._staging.wait()
            self.waited()
        elif self._unsubmitted > _SUBMIT_BYTES:
            self._queue.submit([])
            self._unsubmitted = 0

    def _part(self, buffer: DeviceBuffer, byte_offset: int, data: memoryview) -> None:
        """Write less than a word, to a word's end or from its start."""
        whole = memoryview(bytes(data) + bytes(-len(data) % WORD))
        if byte_offset % WORD == 0 and byte_offset + len(data) == buffer.nbytes:
            # The rest of the word is padding.
            self._words(buffer.memory, byte_offset, whole)
            return
        between = self._mover.room(len(whole))
        self._queue.write_buffer(between, 0, whole)
        self._submissions.add(
            self._mover.move(between, 0, buffer.memory, byte_offset, len(data)),
            lambda: f"writing {len(data)} bytes",
        )
