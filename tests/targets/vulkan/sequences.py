"""Launches over a few windows that overlap, recorded or one by one, with other work in between."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any, Final, NamedTuple

import numpy as np

from tapml_targets.conformance_kernels import ADD, arguments, load
from tapml_targets.driver import BoundLaunch, Buffer, BufferUse, Driver

NBYTES: Final = 2048
WINDOWS: Final = [(buffer, at) for buffer in (0, 1) for at in (0, 16, 60, 64, 256, 512, 1024)]
"""Which buffer, and the byte at which it begins: not all are aligned."""
COUNTS: Final = (0, 1, 15, 16, 100)
"""Elements of a window; 0 are a launch without threads."""
OTHER_WORK: Final = ("nothing", "write", "fill", "copy", "launch", "read", "timed", "submit")


class Step(NamedTuple):
    """A launch: one window becomes another plus `amount`."""

    to: int
    of: int
    elements: int
    amount: int

    @property
    def is_defined(self) -> bool:
        """Whether no thread of the launch writes what another of its threads reads."""
        (buffer, to), (other, of) = WINDOWS[self.to], WINDOWS[self.of]
        return buffer != other or to == of or abs(to - of) >= 4 * self.elements


class Memory:
    """Two buffers of a device, and the kernel."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.kernel = load(driver, ADD)
        self.buffers: list[Buffer] = [driver.allocate(NBYTES) for _ in range(2)]
        for number, buffer in enumerate(self.buffers):
            start = np.arange(NBYTES // 4, dtype=np.float32) + 1000 * number
            driver.write(buffer, 0, memoryview(start.tobytes()))

    def bound(self, steps: Sequence[Step]) -> list[BoundLaunch]:
        return [
            BoundLaunch(
                self.kernel,
                *arguments(
                    self.driver,
                    ADD,
                    [(self.buffers[WINDOWS[each][0]], WINDOWS[each][1]) for each in step[:2]],
                    step.elements,
                    amount=step.amount,
                ),
            )
            for step in steps
        ]

    def alone(self, launches: Sequence[BoundLaunch]) -> None:
        for kernel, given, grid, block, _ in launches:
            self.driver.launch(kernel, given, grid, block)
            self.driver.finish()

    def work(self, what: str, number: int) -> None:
        """Do something between two runs of a sequence."""
        driver, (first, second) = self.driver, self.buffers
        if what == "write":
            driver.write(first, 64, memoryview(np.full(20, number, np.float32).tobytes()))
        elif what == "fill":
            driver.fill(second, 0, 128, np.float32(number).tobytes())
        elif what == "copy":
            driver.copy(first, 256, second, 8, 512)
        elif what in ("launch", "timed"):
            (launch,) = self.bound([Step(1, 8, 16, number)])
            if what == "timed":
                driver.begin_timing()
            driver.launch(*launch[:4])
            if what == "timed":
                driver.end_timing()
        elif what == "read":
            driver.read(first, 0, 4)
        elif what == "submit":
            driver.flush()  # type: ignore[attr-defined]

    def found(self) -> list[bytes]:
        return [bytes(self.driver.read(each, 0, NBYTES)) for each in self.buffers]

    def free(self) -> None:
        for each in self.buffers:
            self.driver.free(each)


def play(driver: Driver, sequences: Sequence[Sequence[Step]], between: Sequence[str]) -> None:
    """Run sequences in turn, other work between them; the same one by one has the same result."""
    recorded, alone = Memory(driver), Memory(driver)
    bound = [recorded.bound(each) for each in sequences]
    prepared = [driver.bind(each) for each in bound]
    for number, what in enumerate(between):
        place = number % len(sequences)
        driver.launch_all(prepared[place])
        driver.launch_all(prepared[place])
        recorded.work(what, number)
    for number, what in enumerate(between):
        launches = alone.bound(sequences[number % len(sequences)])
        alone.alone(launches)
        alone.alone(launches)
        alone.work(what, number)
    assert recorded.found() == alone.found()
    recorded.free()
    alone.free()


def disturbing(launches: Sequence[BoundLaunch]) -> list[tuple[int, int]]:
    """Pairs of launches of which one writes a byte that the other reads or writes."""

    def touched(launch: BoundLaunch) -> tuple[set[Any], set[Any]]:
        if 0 in launch.threads:
            return set(), set()
        sets = [
            {
                (id(use.buffer), byte)
                for byte in range(use.byte_offset, use.byte_offset + use.nbytes)
            }
            for use in launch.arguments
            if isinstance(use, BufferUse)
        ]
        return sets[0], set.union(*sets)

    uses = [touched(each) for each in launches]
    return [
        (first, second)
        for first, second in combinations(range(len(uses)), 2)
        if uses[first][0] & uses[second][1] or uses[second][0] & uses[first][1]
    ]
