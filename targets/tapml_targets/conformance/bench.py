"""An open device with the small kernels of its platform, and what a case says of it."""

from __future__ import annotations

import resource
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tapml_targets.conformance_kernels import KernelText, arguments, kernel_table, load
from tapml_targets.driver import BoundLaunch, Buffer, DeviceDescription, Driver, LoadedKernel
from tapml_targets.errors import MismatchError, TapmlError

_HELD: Final = Path("/proc/self/statm")


class NotOfferedError(TapmlError):
    """The device does not offer what a case is about."""


def process_bytes() -> int:
    """What this process holds; where the system does not say, the most that it ever held."""
    try:
        return int(_HELD.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


@dataclass(frozen=True)
class Bench:
    """A device under test.

    Attributes
    ----------
    driver
        It, open.
    open_device
        Opens it again, or another.
    held_bytes
        The memory that is held by the process that has the driver.
    """

    driver: Driver
    open_device: Callable[[DeviceDescription], Driver]
    held_bytes: Callable[[], int] = process_bytes

    @property
    def platform(self) -> str:
        """The platform's name."""
        return self.driver.description.platform

    @property
    def has_pointers(self) -> bool:
        """Whether kernels take windows of memory and a grid."""
        return kernel_table(self.platform).POINTERS

    def load(self, kernel: KernelText) -> LoadedKernel:
        """Build a kernel."""
        return load(self.driver, kernel)

    def put(self, data: bytes | bytearray) -> Buffer:
        """A new buffer with these bytes."""
        buffer = self.driver.allocate(len(data))
        self.driver.write(buffer, 0, memoryview(data))
        return buffer

    def floats(self, values: Sequence[float]) -> Buffer:
        """A new buffer of float32."""
        return self.put(struct.pack(f"<{len(values)}f", *values))

    def read_floats(self, buffer: Buffer, count: int, offset: int = 0) -> tuple[float, ...]:
        """The float32 of a buffer."""
        return struct.unpack(f"<{count}f", self.driver.read(buffer, offset, 4 * count))

    def bound(
        self,
        kernel: KernelText,
        loaded: LoadedKernel,
        windows: Sequence[tuple[Buffer, int]],
        count: int,
        **scalars: int,
    ) -> BoundLaunch:
        """A launch over `count` elements from byte offsets."""
        return BoundLaunch(loaded, *arguments(self.driver, kernel, windows, count, **scalars))

    def run(self, *launches: BoundLaunch) -> None:
        """Launch in order."""
        self.driver.launch_all(self.driver.bind(launches))


def expect(holds: bool, what: str) -> None:
    """Fail the case with MismatchError if what it is about does not hold."""
    if not holds:
        raise MismatchError(what)


def expect_equal(found: object, expected: object, what: str) -> None:
    """Fail the case with MismatchError if two values differ; both are shown shortened."""
    expect(found == expected, f"{what}: expected {expected!r:.80}, got {found!r:.80}")


def expect_refusal(
    act: Callable[[], object], kind: type[Exception], words: Sequence[str], what: str
) -> None:
    """Fail the case unless `act` raises an error of a kind that says all of `words`."""
    try:
        act()
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        expect(not missing, f"{what}: the error does not say {missing}: {error!s:.120}")
        return
    raise MismatchError(f"{what}: expected {kind.__name__}, and nothing was refused")
