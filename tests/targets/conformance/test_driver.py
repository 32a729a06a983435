"""What every driver does on every device, beside the cases of `tapml devices --test`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tapml_targets import conformance_kernels
from tapml_targets.conformance_kernels import ADD, arguments, kernel_table, load
from tapml_targets.driver import (
    BoundLaunch,
    Buffer,
    Driver,
    HostReadable,
    LoadedKernel,
)
from tapml_targets.errors import CompileError, InputError
from tapml_targets.library import CodeModule, Kernel
from tapml_targets.platforms import platform_names

BYTES = 67
PLACES = st.integers(0, BYTES)
STEPS = st.one_of(
    st.tuples(st.just("write"), PLACES, st.binary(max_size=BYTES)),
    st.tuples(st.just("fill"), PLACES, PLACES, st.binary(min_size=1, max_size=9)),
    st.tuples(st.just("copy"), PLACES, PLACES, PLACES),
    st.tuples(st.just("copy within"), PLACES, PLACES, PLACES),
)


@pytest.fixture
def add(driver: Driver) -> LoadedKernel:
    """o = a + amount."""
    return load(driver, ADD)


def bound(
    driver: Driver, kernel: LoadedKernel, *buffers: Buffer, count: int, amount: int = 3
) -> BoundLaunch:
    """`add` over the first `count` elements of the output and the input."""
    windows = [(buffer, 0) for buffer in buffers]
    return BoundLaunch(kernel, *arguments(driver, ADD, windows, count, amount=amount))


def floats(driver: Driver, values: NDArray[np.float32]) -> Buffer:
    """A buffer with `values`."""
    buffer = driver.allocate(values.nbytes)
    driver.write(buffer, 0, memoryview(values.tobytes()))
    return buffer


def read(driver: Driver, buffer: Buffer) -> NDArray[np.float32]:
    return np.frombuffer(driver.read(buffer, 0, driver.nbytes(buffer)), np.float32)


@pytest.mark.parametrize("platform", platform_names())
def test_every_platform_has_kernels_written_for_it(platform: str) -> None:
    assert kernel_table(platform).modules([ADD])


def test_a_platform_without_kernels_is_told_which_file_to_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conformance_kernels, "optional_part", lambda *_: None)
    with pytest.raises(InputError, match=r"'cpu' has no kernels .*: write conformance\.py"):
        kernel_table("cpu")


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(STEPS, max_size=5), PLACES)
def test_bytes_move_as_in_host_memory_at_any_place(
    driver: Driver, steps: list[tuple[object, ...]], start: int
) -> None:
    buffers = [driver.allocate(BYTES) for _ in range(2)]
    models = [bytearray(BYTES), bytearray(BYTES)]
    for buffer in buffers:
        driver.fill(buffer, 0, BYTES, b"\0")
    for step in steps:
        match step:
            case ("write", int(at), bytes(data)):
                data = data[: BYTES - at]
                driver.write(buffers[0], at, memoryview(data))
                models[0][at : at + len(data)] = data
            case ("fill", int(at), int(size), bytes(pattern)):
                size = min(size, BYTES - at)
                driver.fill(buffers[0], at, size, pattern)
                models[0][at : at + size] = (pattern * size)[:size]
            case (str(kind), int(at), int(to), int(size)):
                size = min(size, BYTES - at, BYTES - to)
                target = 0 if kind == "copy within" else 1
                driver.copy(buffers[0], at, buffers[target], to, size)
                models[target][to : to + size] = bytes(models[0][at : at + size])
    for buffer, model in zip(buffers, models, strict=True):
        assert bytes(driver.read(buffer, start, BYTES - start)) == model[start:]
        driver.free(buffer)


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 1024), (13, 777), (256, 1), (128, 0)])
def test_fill_repeats_any_pattern_over_any_window(driver: Driver, offset: int, nbytes: int) -> None:
    buffer = driver.allocate(2048)
    for size in (1, 2, 3, 4, 7, 16, 100, 128, 256, 1000):
        pattern = (bytes(range(1, 256)) * 5)[:size]
        driver.write(buffer, 0, memoryview(bytes(2048)))
        driver.fill(buffer, offset, nbytes, pattern)
        expected = (pattern * (nbytes // size + 1))[:nbytes]
        found = bytes(driver.read(buffer, 0, 2048))
        assert found == bytes(offset) + expected + bytes(2048 - offset - nbytes), size
    driver.free(buffer)


def test_memory_that_the_host_can_see_is_shown_read_only(driver: Driver) -> None:
    if not isinstance(driver, HostReadable):
        pytest.skip(f"{driver.description.name} has memory of its own")
    buffer = driver.allocate(10)
    driver.write(buffer, 0, memoryview(b"0123456789"))
    shown = driver.show(buffer, 2, 4)
    assert bytes(shown) == b"2345"
    assert shown.readonly
    with pytest.raises(InputError, match="outside a buffer of 10 bytes"):
        driver.show(buffer, 8, 3)


def test_changed_arguments_replace_the_ones_of_the_last_launch(
    driver: Driver, add: LoadedKernel
) -> None:
    zeros = np.zeros(4, np.float32)
    source, first, second = (floats(driver, zeros) for _ in range(3))
    for target, amount in ((first, 1), (second, 1), (first, 2), (second, 3)):
        driver.launch(*bound(driver, add, target, source, count=4, amount=amount)[:4])
        assert read(driver, target).tolist() == [amount] * 4
    assert read(driver, first).tolist() == [2] * 4


def test_a_module_of_another_dialect_is_refused(driver: Driver) -> None:
    with pytest.raises(CompileError, match="modules, this one holds 'punch-cards'"):
        driver.load(CodeModule("punch-cards", b""), [Kernel("add", "add", 0)])
