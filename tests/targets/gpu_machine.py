"""A GPU for stand-ins of vendors' bindings: the simulator's memory and kernels behind one stream.

What is enqueued runs when it is waited for, so work that is read before it is done is not there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from tapml_targets.driver import BoundLaunch, BufferUse, Driver, KernelArgument, ScalarUse
from tapml_targets.simulator.memory import GuardedBuffer


class Refused(AssertionError):
    """What a GPU would not take."""


class Machine:
    """Memory by its address, and commands in their order."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.memory: dict[int, GuardedBuffer] = {}
        self.waiting: list[Callable[[], None]] = []
        self.captured: list[Callable[[], None]] | None = None
        self.replays = 0
        self.milliseconds = 0.0

    def allocate(self, nbytes: int) -> int:
        if nbytes < 1:
            raise Refused("memory of no bytes")
        made = self.driver.allocate(nbytes)
        self.memory[made.address] = made
        return int(made.address)

    def free(self, address: int) -> None:
        self.driver.free(self.memory.pop(address))

    def enqueue(self, act: Callable[[], None]) -> None:
        (self.waiting if self.captured is None else self.captured).append(act)

    def wait(self) -> None:
        if self.captured is not None:
            raise Refused("waiting while a graph is recorded")
        while self.waiting:
            self.waiting.pop(0)()

    def capture(self) -> None:
        if self.captured is not None:
            raise Refused("a recording within another")
        self.captured = []

    def end_capture(self) -> list[Callable[[], None]]:
        if self.captured is None:
            raise Refused("no recording to end")
        made, self.captured = self.captured, None
        return made

    def replay(self, graph: Sequence[Callable[[], None]]) -> None:
        self.replays += 1
        self.waiting += graph

    def found(self, address: int, nbytes: int) -> tuple[GuardedBuffer, int] | None:
        """The buffer that holds a window, and where; None if it is not on the device."""
        for begin, each in self.memory.items():
            if begin <= address and address + nbytes <= begin + each.nbytes:
                return each, address - begin
        return None

    def copy(self, target: int, source: int, nbytes: int, on_device: tuple[bool, bool]) -> None:
        """Enqueue a copy; `on_device` says of target and source where they must be."""
        for address, device in zip((target, source), on_device, strict=True):
            if device != (self.found(address, nbytes) is not None):
                raise Refused(f"{nbytes} bytes at {address:#x} of the wrong memory")

        def copy() -> None:
            for address, device in zip((target, source), on_device, strict=True):
                if device and self.found(address, nbytes) is None:
                    raise Refused("a copy of memory that was freed")
            ctypes.memmove(target, source, nbytes)

        self.enqueue(copy)

    def fill(self, address: int, nbytes: int, pattern: bytes) -> None:
        if self.found(address, nbytes) is None or address % len(pattern) or nbytes % len(pattern):
            raise Refused(f"a fill of {nbytes} bytes at {address:#x} with {pattern!r}")
        data = pattern * (nbytes // len(pattern))

        def fill() -> None:
            ctypes.memmove(address, data, nbytes)

        self.enqueue(fill)

    def run(
        self,
        kernel: Any,
        given: Sequence[bytes],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
    ) -> None:
        """Enqueue a kernel of the simulator with the bytes of each argument."""
        if len(given) != len(kernel.sizes) or 0 in (*grid, *block):
            raise Refused(f"{len(given)} arguments, grid {grid}, block {block}")
        arguments: list[KernelArgument] = []
        for value, size in zip(given, kernel.sizes, strict=True):
            number = int.from_bytes(value, "little")
            if size:
                if len(value) != size:
                    raise Refused(f"a number of {len(value)} bytes, not of {size}")
                arguments.append(ScalarUse(number, f"uint{8 * size}"))
                continue
            place = self.found(number, 0)
            if place is None:
                raise Refused(f"no memory at {number:#x}")
            buffer, offset = place
            arguments.append(BufferUse(buffer, offset, buffer.nbytes - offset))
        launch = BoundLaunch(kernel, tuple(arguments), grid, block, shared)

        def run() -> None:
            self.driver.begin_timing()
            try:
                self.driver.launch_all(self.driver.bind([launch]))
            finally:
                self.milliseconds += self.driver.end_timing()() / 1e6

        self.enqueue(run)
