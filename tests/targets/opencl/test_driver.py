"""Memory, launches and errors of the OpenCL driver, on every device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tapml_targets.driver import (
    BufferUse,
    DeviceDescription,
    Driver,
    KernelArgument,
    OpensMemory,
    ScalarUse,
)
from tapml_targets.errors import InputError, NoSuchDeviceError
from tapml_targets.fingerprint import fingerprint
from tapml_targets.library import CodeModule, Kernel
from tapml_targets.opencl.driver import open_device


def test_what_is_written_is_read(driver: Driver) -> None:
    data = np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8)
    buffer = driver.allocate(data.nbytes)
    driver.write(buffer, 0, data.data)
    assert driver.read(buffer, 0, data.nbytes) == data.data
    assert driver.read(buffer, 77, 1000) == data[77:1077].data
    target = bytearray(500)
    driver.read_into(buffer, 5, memoryview(target))
    assert target == data[5:505].tobytes()
    driver.free(buffer)


def test_written_data_may_be_reused_at_once(driver: Driver) -> None:
    buffer = driver.allocate(1 << 16)
    data = bytearray(b"\x05" * (1 << 16))
    driver.write(buffer, 0, memoryview(data))
    data[:] = bytes(1 << 16)
    assert bytes(driver.read(buffer, 0, 1 << 16)) == b"\x05" * (1 << 16)


def test_memory_shared_with_the_host_is_filled_where_it_lies(driver: Driver) -> None:
    assert isinstance(driver, OpensMemory)
    if not driver.opens_memory():
        pytest.skip(f"{driver.description.name} has memory of its own")
    buffer = driver.allocate(1 << 20)
    source = b"__kernel void late(__global int* o) { for (int i = 0; i < 1 << 18; ++i) o[i] = 1; }"
    kernel = driver.load(CodeModule("opencl-c", source), [Kernel("late", "late", 0)])["late"]
    driver.launch(kernel, [BufferUse(buffer, 0, 1 << 20)], (1, 1, 1), (1, 1, 1))
    with driver.open_memory(buffer, 5, 70_000) as memory:
        memory[:] = b"\x02" * 70_000
    with pytest.raises(InputError, match="write"), driver.open_memory(buffer, 1 << 20, 1):
        pass
    ones = np.ones(1 << 18, np.int32).tobytes()
    assert driver.read(buffer, 0, 1 << 20) == ones[:5] + b"\x02" * 70_000 + ones[70_005:]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 16, 100, 128, 256, 1000])
@pytest.mark.parametrize(("offset", "nbytes"), [(0, 1024), (13, 777), (256, 1), (128, 0)])
def test_fill_repeats_any_pattern_over_any_window(
    driver: Driver, size: int, offset: int, nbytes: int
) -> None:
    pattern = bytes(range(1, 256)) * 5
    buffer = driver.allocate(2048)
    driver.write(buffer, 0, memoryview(bytes(2048)))
    driver.fill(buffer, offset, nbytes, pattern[:size])
    expected = (pattern[:size] * (nbytes // size + 1))[:nbytes]
    found = bytes(driver.read(buffer, 0, 2048))
    assert found == bytes(offset) + expected + bytes(2048 - offset - nbytes)
    driver.free(buffer)


def test_copies_move_bytes_between_and_within_buffers(driver: Driver) -> None:
    first, second = driver.allocate(100), driver.allocate(100)
    data = bytes(range(100))
    driver.write(first, 0, memoryview(data))
    driver.fill(second, 0, 100, b"\0")
    driver.copy(first, 10, second, 3, 50)
    assert bytes(driver.read(second, 0, 100)) == bytes(3) + data[10:60] + bytes(47)
    driver.copy(first, 0, first, 5, 90)
    assert bytes(driver.read(first, 0, 100)) == data[:5] + data[:90] + data[95:]


def test_windows_outside_a_buffer_are_refused(driver: Driver) -> None:
    buffer = driver.allocate(10)
    for act in (
        lambda: driver.write(buffer, 8, memoryview(b"abc")),
        lambda: driver.read(buffer, -1, 2),
        lambda: driver.read(buffer, 0, 11),
        lambda: driver.fill(buffer, 10, 1, b"a"),
        lambda: driver.copy(buffer, 0, buffer, 6, 5),
    ):
        with pytest.raises(InputError, match="outside a buffer of 10 bytes"):
            act()
    with pytest.raises(InputError, match="at least one byte"):
        driver.fill(buffer, 0, 4, b"")


def test_a_freed_buffer_holds_nothing(driver: Driver) -> None:
    buffer = driver.allocate(16)
    driver.free(buffer)
    assert driver.nbytes(buffer) == 0
    with pytest.raises(InputError):
        driver.read(buffer, 0, 1)


def test_an_allocation_beyond_the_device_says_what_it_has(driver: Driver) -> None:
    most = driver.description.limits.max_buffer_bytes
    with pytest.raises(InputError, match=f"at most {most}"):
        driver.allocate(most + 1)


def test_memory_is_given_back(driver: Driver) -> None:
    size = min(driver.description.limits.max_buffer_bytes, 256 << 20)
    rounds = driver.description.limits.memory_bytes // size + 8
    for _ in range(rounds):
        buffer = driver.allocate(size)
        driver.write(buffer, size - 8, memoryview(bytes(8)))
        driver.free(buffer)


SCALARS = {
    "int8": -5,
    "uint8": 200,
    "int32": -70000,
    "uint32": 4000000000,
    "int64": -(1 << 40),
    "uint64": (1 << 63) + 5,
    "float32": 7,
    "bool": 1,
}
NAMES = {
    "int8": "char",
    "uint8": "uchar",
    "int32": "int",
    "uint32": "uint",
    "int64": "long",
    "uint64": "ulong",
    "float32": "float",
    "bool": "char",
}


def test_scalars_arrive_in_their_dtype(driver: Driver) -> None:
    parameters = ", ".join(f"{NAMES[name]} s{i}" for i, name in enumerate(SCALARS))
    stores = " ".join(f"o[{i}] = (long)s{i};" for i in range(len(SCALARS)))
    source = f"__kernel void scalars(__global long* o, {parameters}) {{ {stores} }}"
    kernel = driver.load(CodeModule("opencl-c", source.encode()), [Kernel("k", "scalars", 0)])["k"]
    buffer = driver.allocate(8 * len(SCALARS))
    use = BufferUse(buffer, 0, 8 * len(SCALARS))
    arguments: list[KernelArgument] = [use]
    arguments += [ScalarUse(value, name) for name, value in SCALARS.items()]
    driver.launch(kernel, arguments, (1, 1, 1), (1, 1, 1))
    found = np.frombuffer(driver.read(buffer, 0, 8 * len(SCALARS)), np.int64)
    assert [int(word) % 2**64 for word in found] == [value % 2**64 for value in SCALARS.values()]


def test_changed_arguments_replace_the_ones_of_the_last_launch(driver: Driver) -> None:
    source = b"__kernel void put(__global int* o, int value) { o[0] = value; }"
    kernel = driver.load(CodeModule("opencl-c", source), [Kernel("put", "put", 0)])["put"]
    first, second = driver.allocate(4), driver.allocate(4)
    for buffer, value in ((first, 1), (second, 1), (first, 2), (second, 3)):
        arguments = (BufferUse(buffer, 0, 4), ScalarUse(value, "int32"))
        driver.launch(kernel, arguments, (1, 1, 1), (1, 1, 1))
        assert np.frombuffer(driver.read(buffer, 0, 4), np.int32)[0] == value
    assert np.frombuffer(driver.read(first, 0, 4), np.int32)[0] == 2


def test_the_wrong_number_of_arguments_is_refused(driver: Driver) -> None:
    source = b"__kernel void put(__global int* o, int value) { o[0] = value; }"
    kernel = driver.load(CodeModule("opencl-c", source), [Kernel("put", "put", 0)])["put"]
    with pytest.raises(InputError, match="'put' takes 2 arguments, got 1"):
        driver.launch(kernel, [ScalarUse(1, "int32")], (1, 1, 1), (1, 1, 1))


def test_overlapping_misaligned_windows_are_refused(driver: Driver) -> None:
    source = b"__kernel void two(__global int* a, __global int* b) { a[0] = b[1]; }"
    kernel = driver.load(CodeModule("opencl-c", source), [Kernel("two", "two", 0)])["two"]
    buffer = driver.allocate(64)
    arguments = (BufferUse(buffer, 4, 16), BufferUse(buffer, 8, 16))
    with pytest.raises(InputError, match="overlap"):
        driver.launch(kernel, arguments, (1, 1, 1), (1, 1, 1))


def test_another_driver_version_is_another_device(opencl_device: DeviceDescription) -> None:
    with pytest.raises(NoSuchDeviceError, match="`tapml devices` lists what is"):
        open_device(replace(opencl_device, driver_version="0"))


def test_a_device_is_found_again_at_another_index(opencl_device: DeviceDescription) -> None:
    opened = open_device(replace(opencl_device, index=99))
    assert opened.description.index == opencl_device.index
    # Amounts of memory and the clock follow what else runs on the machine.
    assert fingerprint(opened.description) == fingerprint(opencl_device)
    opened.close()
