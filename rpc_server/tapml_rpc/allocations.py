"""The commands ``allocate`` and ``free``: a session's memory, reused after ``free``.

A device takes long to allocate memory, and one operator test needs what the last one did.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from tapml_rpc import wire
from tapml_rpc.bounds import Bounds
from tapml_rpc.running_batch import Index, RunningBatch
from tapml_rpc.server_session import HeldBuffer, ServerSession
from tapml_targets.driver import Buffer, Driver
from tapml_targets.errors import InputError

# What is kept of the memory that a session frees.
MAX_SPARE_BYTES: Final = 64 << 20
MAX_SPARE_SIZES: Final = 256


class Allocations:
    """The commands over a session's memory. All methods run on the device thread."""

    def __init__(self, driver: Driver, bounds: Bounds) -> None:
        self._driver = driver
        self._bounds = bounds

    def allocate(self, batch: RunningBatch, index: Index, handle: object, nbytes: object) -> None:
        """Make a buffer, reusing freed memory of its size if there is some."""
        session = batch.session
        number = session.new_handle(handle, self._bounds.handles)
        size = wire.integer(nbytes, "byte count")
        if session.nbytes + size > self._bounds.session_bytes:
            raise InputError(
                f"allocating {size} bytes would bring this session to {session.nbytes + size}; "
                f"its bound is {self._bounds.session_bytes}"
            )
        spare = session.spare.get(size)
        if spare:
            buffer = spare.popleft()
            session.spare_bytes -= size
        else:
            buffer = self._new_buffer(session, size)
        session.buffers[number] = HeldBuffer(buffer, size)
        session.nbytes += size

    def free(self, batch: RunningBatch, index: Index, handle: object) -> None:
        """Free a buffer or a recording; a missing one is no error."""
        session = batch.session
        number = wire.integer(handle, "handle")
        held = session.buffers.pop(number, None)
        if held is None:
            session.recordings.pop(number, None)
            return
        size = held.nbytes
        session.nbytes -= size
        session.releases += 1
        if size > MAX_SPARE_BYTES:
            self._driver.free(held.buffer)
            return
        if session.spare_bytes + size > MAX_SPARE_BYTES or len(session.spare) >= MAX_SPARE_SIZES:
            self.free_spare(session)
        # First in, first out: the next test's first tensor gets this test's first tensor's memory.
        session.spare.setdefault(size, deque()).append(held.buffer)
        session.spare_bytes += size

    def free_spare(self, session: ServerSession) -> None:
        """Free the memory kept of a session's freed buffers."""
        spare, session.spare, session.spare_bytes = session.spare, {}, 0
        for buffers in spare.values():
            for buffer in buffers:
                self._driver.free(buffer)

    def _new_buffer(self, session: ServerSession, size: int) -> Buffer:
        try:
            return self._driver.allocate(size)
        except Exception:
            if not session.spare_bytes:
                raise
        # The memory kept for later may be what is missing.
        self.free_spare(session)
        return self._driver.allocate(size)
