"""A simulated device that checks every access of a kernel, and writes what it finds to a log."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tapml_targets.check_messages import Access, Kind, Message, Place
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import InputError, SetupError
from tapml_targets.simulator import failures
from tapml_targets.simulator.checker import MAX_MESSAGES
from tapml_targets.simulator.launching import PreparedLaunch, Schedule
from tapml_targets.simulator.lines import place_at
from tapml_targets.simulator.memory import GuardedBuffer, Pages
from tapml_targets.simulator.simulated_driver import SimulatedDriver

# Beyond it races in global memory are not followed: each byte takes 48 of the shadow.
_FOLLOWED_BYTES: Final = 4 << 20
_SHARED_NAMES: Final = ("global", "local", "private")
_OFFSET_BITS: Final = 48
_READ, _WRITE, _RACE, _UNINITIALISED = 1, 2, 3, 4
_KINDS: Final[dict[int, Kind]] = {
    _READ: "out-of-bounds read",
    _WRITE: "out-of-bounds write",
    _RACE: "data race",
    _UNINITIALISED: "uninitialised value",
}
_HEADLINES: Final = {
    _READ: "Invalid read of size {size} at {space}",
    _WRITE: "Invalid write of size {size} at {space}",
    _UNINITIALISED: "Read of size {size}, of which not all was written, at {space}",
}


class _Window(ctypes.Structure):
    _fields_ = (
        ("begin", ctypes.c_uint64),
        ("nbytes", ctypes.c_uint64),
        ("cells", ctypes.c_void_p),
        ("written", ctypes.c_void_p),
        ("read_only", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
    )


class _Found(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("space", ctypes.c_uint32),
        ("nbytes", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("thread", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("other_thread", ctypes.c_uint32 * 3),
        ("other_block", ctypes.c_uint32 * 3),
        ("writes", ctypes.c_uint32),
        ("other_writes", ctypes.c_uint32),
        ("address", ctypes.c_uint64),
        ("place", ctypes.c_uint64),
        ("other_place", ctypes.c_uint64),
    )


class CheckedBuffer(GuardedBuffer):
    """A buffer that knows its number and which of its bytes hold something."""

    __slots__ = ("number", "written")

    def __init__(self, nbytes: int, number: int) -> None:
        super().__init__(nbytes)
        self.number = number
        self.written = Pages(nbytes)

    def mark(self, byte_offset: int, nbytes: int) -> None:
        """Note that a window was written."""
        ctypes.memset(self.written.address + byte_offset, 1, nbytes)

    def release(self) -> None:
        """Give the memory back."""
        super().release()
        self.written.release()


class CheckedDriver(SimulatedDriver):
    """A simulated device that checks; faults go to a log, one a line."""

    checked = True

    def __init__(
        self,
        description: DeviceDescription,
        dialect: str,
        wave_width: int,
        schedule: Schedule,
        log: Path,
    ) -> None:
        super().__init__(description, dialect, wave_width, schedule)
        self._log = log
        self._buffers = 0
        self._messages = 0

    def new_buffer(self, nbytes: int) -> CheckedBuffer:
        """A buffer, numbered from 1."""
        self._buffers += 1
        return CheckedBuffer(nbytes, self._buffers)

    def write(self, buffer: GuardedBuffer, byte_offset: int, data: memoryview) -> None:
        """See :meth:`Driver.write`."""
        super().write(buffer, byte_offset, data)
        _checked(buffer).mark(byte_offset, memoryview(data).nbytes)

    def fill(self, buffer: GuardedBuffer, byte_offset: int, nbytes: int, pattern: bytes) -> None:
        """See :meth:`Driver.fill`."""
        super().fill(buffer, byte_offset, nbytes, pattern)
        _checked(buffer).mark(byte_offset, nbytes)

    def copy(
        self,
        source: GuardedBuffer,
        source_offset: int,
        target: GuardedBuffer,
        target_offset: int,
        nbytes: int,
    ) -> None:
        """See :meth:`Driver.copy`."""
        super().copy(source, source_offset, target, target_offset, nbytes)
        ctypes.memmove(
            _checked(target).written.address + target_offset,
            _checked(source).written.address + source_offset,
            nbytes,
        )

    def run(self, launch: PreparedLaunch) -> int:
        """Run a launch, and log what is wrong with it; the result is its nanoseconds."""
        library = launch.kernel.library
        cell_bytes = library.tapml_cell_bytes()
        buffers = {use.buffer.number: _checked(use.buffer) for use in launch.uses}
        try:
            cells = {
                number: Pages(cell_bytes * buffer.nbytes)
                for number, buffer in buffers.items()
                if buffer.nbytes <= _FOLLOWED_BYTES
            }
        except MemoryError as error:
            raise SetupError(
                f"{self.description.name} has no room to follow the accesses of kernel "
                f"{launch.kernel.name!r}: {error}"
            ) from None
        windows = []
        for use in launch.uses:
            buffer: CheckedBuffer = use.buffer
            shadow = cells.get(buffer.number)
            windows.append(
                _Window(
                    buffer.address + use.byte_offset,
                    use.nbytes,
                    shadow and shadow.address + cell_bytes * use.byte_offset,
                    buffer.written.address + use.byte_offset,
                )
            )
        windows += [
            _Window(begin, nbytes, None, None, 1) for begin, nbytes in launch.given_by_the_host()
        ]
        library.tapml_check((_Window * len(windows))(*windows), len(windows))
        try:
            elapsed, failure = self._runner.run(launch)
            self._report(launch, failure, list(buffers.values()))
        finally:
            for pages in cells.values():
                pages.release()
        return elapsed

    def _report(
        self, launch: PreparedLaunch, failure: Any, buffers: Sequence[CheckedBuffer]
    ) -> None:
        library = launch.kernel.library
        count, more = ctypes.c_uint32(), ctypes.c_uint32()
        library.tapml_found.restype = ctypes.POINTER(_Found)
        found = library.tapml_found(ctypes.byref(count), ctypes.byref(more))
        messages = [_message(found[i], launch, buffers) for i in range(count.value)]
        if failure is not None:
            messages += _ended(failure, launch, known=bool(messages))
        with self._log.open("a", encoding="utf-8") as log:
            for message in messages:
                self._messages += 1
                if self._messages <= MAX_MESSAGES:
                    log.write(json.dumps(asdict(message)) + "\n")
            if more.value or self._messages > MAX_MESSAGES:
                log.write(json.dumps({"silenced": True}) + "\n")


def _checked(buffer: GuardedBuffer) -> CheckedBuffer:
    if not isinstance(buffer, CheckedBuffer):
        raise InputError("a buffer is another device's")
    return buffer


def _message(found: Any, launch: PreparedLaunch, buffers: Sequence[CheckedBuffer]) -> Message:
    space = _SHARED_NAMES[found.space]
    address = _address(found.address, buffers) if space == "global" else found.address
    if found.kind == _RACE:
        both = found.writes and found.other_writes
        headline = f"{'Write-write' if both else 'Read-write'} data race at {space}"
    else:
        headline = _HEADLINES[found.kind].format(size=found.nbytes, space=space)
    places = [_place(found.place, found.thread, found.block, found.writes, launch)]
    if found.kind == _RACE:
        places.append(
            _place(
                found.other_place, found.other_thread, found.other_block, found.other_writes, launch
            )
        )
    return Message(
        _KINDS[found.kind],
        f"{headline} memory address {address % (1 << 64):#x}",
        launch.kernel.symbol,
        tuple(places),
        space,
        address % (1 << 64),
        found.nbytes,
    )


def _address(address: int, buffers: Sequence[CheckedBuffer]) -> int:
    """The number of the buffer that an address is in, or nearest to, and the byte in it."""

    def distance(buffer: CheckedBuffer) -> int:
        return max(buffer.address - address, address - buffer.address - buffer.nbytes + 1, 0)

    if not buffers:
        return address
    nearest = min(buffers, key=distance)
    return (nearest.number << _OFFSET_BITS) + address - nearest.address


def _place(
    place: int, thread: Sequence[int], block: Sequence[int], writes: int, launch: PreparedLaunch
) -> Place:
    # The place is behind the call that tells of the access.
    line, column = place_at(launch.kernel.library, place - 1, relative=True)
    index = (b * extent + t for b, extent, t in zip(block, launch.block, thread, strict=True))
    access: Access = "write" if writes else "read"
    return Place(line, column, access, _tuple(index), _tuple(block))


def _tuple(values: Iterator[int] | Sequence[int]) -> str:
    return f"({','.join(map(str, values))})"


def _ended(failure: Any, launch: PreparedLaunch, *, known: bool) -> list[Message]:
    """What ended the launch before its last block, unless a stray access is told of already."""
    kind: Kind = "other"
    line = failure.line
    if failure.fault in failures.DIVERGENCES:
        kind = "barrier divergence"
    elif failure.fault == failures.BAD_ADDRESS:
        if known:
            return []
        kind = "out-of-bounds read"
        line = failures.line_of(failure, launch)
    index = (
        b * extent + t
        for b, extent, t in zip(failure.block, launch.block, failure.thread, strict=True)
    )
    waits: Access = "barrier" if kind == "barrier divergence" else ""
    places = [Place(line, 0, waits, _tuple(index), _tuple(failure.block))]
    if kind == "barrier divergence" and failure.other_line:
        other = (
            b * extent + t
            for b, extent, t in zip(failure.block, launch.block, failure.other_thread, strict=True)
        )
        places.append(Place(failure.other_line, 0, waits, _tuple(other), _tuple(failure.block)))
    told = failures.sentence(failure, launch)
    return [Message(kind, told[:1].upper() + told[1:], launch.kernel.symbol, tuple(places))]
