"""Where a self-test runs: on a driver in this process, or over a session."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tapml_targets.driver import Buffer, DeviceDescription, Driver, TensorUse
from tapml_targets.errors import TapmlError
from tapml_targets.evaluator import LoadedLibrary
from tapml_targets.library import Library


class Place(Protocol):
    """The operations of a device that a self-test needs."""

    @property
    def device(self) -> DeviceDescription:
        """The device."""

    def run(
        self, library: Library, name: str, tensors: Sequence[NDArray[Any]]
    ) -> list[NDArray[Any]]:
        """Call an operator with `tensors` as its parameters; return all of them afterwards."""

    def ends(self, nbytes: int, data: bytes) -> tuple[bytes, bytes]:
        """Allocate a buffer, write `data` at both of its ends, read both."""

    def round_trip(self, data: bytes) -> bytes:
        """Write `data`, copy it on the device to another buffer, read that."""


class DriverPlace:
    """An open driver of this process; see :class:`Place`. Closing it leaves the driver open."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._loaded: dict[int, tuple[Library, LoadedLibrary]] = {}

    @property
    def device(self) -> DeviceDescription:
        """See :class:`Place`."""
        return self.driver.description

    def run(
        self, library: Library, name: str, tensors: Sequence[NDArray[Any]]
    ) -> list[NDArray[Any]]:
        """See :meth:`Place.run`."""
        if id(library) not in self._loaded:
            self._loaded[id(library)] = library, LoadedLibrary(self.driver, library)
        loaded = self._loaded[id(library)][1]
        driver, uses = self.driver, []
        try:
            for array in tensors:
                buffer = driver.allocate(array.nbytes)
                uses.append(TensorUse(buffer, 0, array.shape, str(array.dtype)))
                driver.write(buffer, 0, memoryview(array.tobytes()))
            loaded.call(name, uses)
            driver.finish()
            return [
                np.frombuffer(driver.read(use.buffer, 0, array.nbytes), array.dtype).reshape(
                    array.shape
                )
                for use, array in zip(uses, tensors, strict=True)
            ]
        finally:
            self._free([use.buffer for use in uses])

    def ends(self, nbytes: int, data: bytes) -> tuple[bytes, bytes]:
        """See :meth:`Place.ends`."""
        driver, size = self.driver, len(data)
        buffer = driver.allocate(nbytes)
        try:
            for start in (0, nbytes - size):
                driver.write(buffer, start, memoryview(data))
            first, last = (bytes(driver.read(buffer, at, size)) for at in (0, nbytes - size))
            return first, last
        finally:
            self._free([buffer])

    def round_trip(self, data: bytes) -> bytes:
        """See :meth:`Place.round_trip`."""
        driver, size = self.driver, len(data)
        buffers = [driver.allocate(size) for _ in range(2)]
        try:
            driver.write(buffers[0], 0, memoryview(data))
            driver.copy(buffers[0], 0, buffers[1], 0, size)
            return bytes(driver.read(buffers[1], 0, size))
        finally:
            self._free(buffers)

    def close(self) -> None:
        """Forget the kernels."""
        for _, loaded in self._loaded.values():
            loaded.close()
        self._loaded.clear()

    def _free(self, buffers: Sequence[Buffer]) -> None:
        # A failed driver may fail here again: the first failure is reported.
        for buffer in buffers:
            with suppress(TapmlError):
                self.driver.free(buffer)
