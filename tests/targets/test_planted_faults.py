"""A fault that is planted in a driver fails the conformance case that is about it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tapml_targets import platforms
from tapml_targets.conformance.bench import Bench
from tapml_targets.conformance.running import CASES, run_cases
from tapml_targets.driver import BoundLaunch, BufferUse, DeviceDescription, ScalarUse
from tapml_targets.errors import CompileError, InputError
from tapml_targets.library import CodeModule, Kernel
from tests.targets.third_party import site

__all__ = ["site"]

Methods = dict[str, Callable[..., Any]]


def faults(sound: Any) -> dict[str, tuple[str, Methods]]:
    """The case and the wrong methods of each fault; `sound` is the driver's class."""
    kept: list[Any] = []

    def write_at_words(self: Any, buffer: Any, offset: int, data: memoryview) -> None:
        sound.write(self, buffer, offset // 4 * 4, data)

    def copy_forward(self: Any, source: Any, at: int, target: Any, to: int, size: int) -> None:
        for i in range(size):
            sound.copy(self, source, at + i, target, to + i, 1)

    def read_into_short(self: Any, buffer: Any, offset: int, target: memoryview) -> None:
        sound.read_into(self, buffer, offset, target[:-1])

    def fill_a_megabyte(self: Any, buffer: Any, offset: int, size: int, pattern: bytes) -> None:
        sound.fill(self, buffer, offset, min(size, 1 << 20), pattern)

    def read_anything(self: Any, buffer: Any, offset: int, size: int) -> memoryview:
        try:
            return memoryview(sound.read(self, buffer, offset, size))
        except InputError:
            return memoryview(bytes(size))

    def allocate_anything(self: Any, nbytes: int) -> Any:
        return sound.allocate(self, min(nbytes, 1 << 28))

    def bind_31_bits(self: Any, launches: Sequence[BoundLaunch]) -> Any:
        return sound.bind(self, [each._replace(arguments=tuple(
            replace(a, value=int(a.value) & 0x7FFFFFFF)
            if isinstance(a, ScalarUse) and a.dtype == "uint32" else a
            for a in each.arguments
        )) for each in launches])  # fmt: skip

    def run_backwards(self: Any, sequence: Any) -> None:
        sound.launch_all(self, tuple(reversed(sequence)))

    def run_later(self: Any, sequence: Any) -> None:
        kept.append(sequence)

    def finish_then(self: Any) -> None:
        while kept:
            sound.launch_all(self, kept.pop(0))

    def bind_to_the_last(self: Any, launches: Sequence[BoundLaunch]) -> Any:
        bound = sound.bind(self, launches)
        return tuple((kernel, bound[-1][1], threads) for kernel, _, threads in bound)

    def bind_at_256(self: Any, launches: Sequence[BoundLaunch]) -> Any:
        return sound.bind(self, [each._replace(arguments=tuple(
            replace(a, byte_offset=a.byte_offset // 256 * 256) if isinstance(a, BufferUse) else a
            for a in each.arguments
        )) for each in launches])  # fmt: skip

    def bind_a_short_grid(self: Any, launches: Sequence[BoundLaunch]) -> Any:
        short = [each._replace(grid=(min(each.grid[0], 65535), 1, 1)) for each in launches]
        return sound.bind(self, short)

    def bind_at_least_a_block(self: Any, launches: Sequence[BoundLaunch]) -> Any:
        some = [each._replace(grid=(max(1, each.grid[0]), *each.grid[1:])) for each in launches]
        return sound.bind(self, some)

    def run_confined(self: Any, sequence: Any) -> None:
        # What is written behind a window is lost, its guard band included.
        for kernel, arguments, threads in sequence:
            place = arguments[0].value
            after = ctypes.string_at(place + 32, 64)
            sound.launch_all(self, ((kernel, arguments, threads),))
            ctypes.memmove(place + 32, after, 64)

    def time_nothing(self: Any) -> Callable[[], int]:
        sound.end_timing(self)
        return lambda: 0

    def keep(self: Any, buffer: Any) -> None:
        kept.append(buffer.bytes)

    def load_any_option(self: Any, module: CodeModule, kernels: Sequence[Kernel]) -> Any:
        return sound.load(self, replace(module, options=()), kernels)

    def load_silently(self: Any, module: CodeModule, kernels: Sequence[Kernel]) -> Any:
        try:
            return sound.load(self, module, kernels)
        except CompileError:
            raise CompileError("it does not build") from None

    def bind_too_few(self: Any, launches: Sequence[BoundLaunch]) -> Any:
        whole = (each for each in launches if len(each.arguments) == each.kernel.parameters)
        return sound.bind(self, list(whole))

    return {
        "writes at words": ("bytes at odd offsets", {"write": write_at_words}),
        "copies forward": ("bytes at odd offsets", {"copy": copy_forward}),
        "reads all but a byte": ("large transfers", {"read_into": read_into_short}),
        "fills a megabyte": ("large fills", {"fill": fill_a_megabyte}),
        "reads anything": ("windows outside a buffer", {"read": read_anything}),
        "allocates anything": ("allocations beyond the device", {"allocate": allocate_anything}),
        "passes 31 bits": ("scalars of every dtype", {"bind": bind_31_bits}),
        "runs backwards": ("order of launches", {"launch_all": run_backwards}),
        "runs later": (
            "work is done before it is read", {"launch_all": run_later, "finish": finish_then},
        ),
        "shares arguments": ("a sequence is reused", {"bind": bind_to_the_last}),
        "aligns windows": ("misaligned windows", {"bind": bind_at_256}),
        "cuts a grid": ("grids above 65535", {"bind": bind_a_short_grid}),
        "runs a block of none": ("a launch over nothing", {"bind": bind_at_least_a_block}),
        "hides a guard band": ("guard bands", {"launch_all": run_confined}),
        "times nothing": ("kernels are timed", {"end_timing": time_nothing}),
        "frees nothing": ("rounds without growth", {"free": keep}),
        "takes any option": ("modules that are not the devices", {"load": load_any_option}),
        "hides the log": ("a kernel that does not compile", {"load": load_silently}),
        "takes too few arguments": ("a wrong number of arguments", {"bind": bind_too_few}),
    }  # fmt: skip


FAULTS = tuple(faults(object))


def opened(module: ModuleType, methods: Methods) -> Bench:
    """The device of the platform `abacus` with some methods replaced."""
    description: DeviceDescription = module.list_devices()[0]
    faulty = type("FaultyDriver", (module.AbacusDriver,), methods)
    return Bench(faulty(description, True), module.open_device)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_fails_the_case_about_it(site: Path, fault: str) -> None:
    module = platforms.load_driver_module("abacus")
    case, methods = faults(module.AbacusDriver)[fault]
    (sound,) = run_cases(opened(module, {}), [case])
    assert sound.status == "pass", sound.reason
    (result,) = run_cases(opened(module, methods), [case])
    assert result.status == "fail"
    assert result.reason


def test_a_driver_that_opens_any_device_fails_the_case_about_it(site: Path) -> None:
    module = platforms.load_driver_module("abacus")
    sound = opened(module, {})
    anything = replace(sound, open_device=lambda _: sound.driver)
    (result,) = run_cases(anything, ["another device"])
    assert "expected NoSuchDeviceError, and nothing was refused" in result.reason


def test_nearly_every_case_has_a_fault() -> None:
    planted = {case for case, _ in faults(object).values()} | {"another device"}
    assert set(CASES) - planted == {
        "every bit of an element",
        "opening again",
    }
