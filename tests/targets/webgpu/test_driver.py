"""What is WebGPU's own: bindings, folded grids, windows that have to be copied, and passes."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tapml_targets.driver import BoundLaunch, Buffer, BufferUse, Driver, ScalarUse, TensorUse
from tapml_targets.errors import InputError
from tapml_targets.evaluator import LoadedLibrary
from tapml_targets.webgpu import commands
from tapml_targets.webgpu.programs import LoadedKernel
from tests.targets.libraries import library
from tests.targets.webgpu.wgsl import ADD, copy, load


@pytest.fixture(scope="module")
def add(driver: Driver) -> LoadedKernel:
    return load(driver, ADD, "add")


def floats(driver: Driver, values: NDArray[np.float32]) -> Buffer:
    """A buffer with `values`."""
    buffer = driver.allocate(values.nbytes)
    driver.write(buffer, 0, memoryview(values.tobytes()))
    return buffer


def read(driver: Driver, buffer: Buffer) -> NDArray[np.float32]:
    return np.frombuffer(driver.read(buffer, 0, driver.nbytes(buffer)), np.float32)


def test_a_grid_wider_than_the_device_takes_is_folded(driver: Driver) -> None:
    count = 64 * (driver.description.limits.max_grid[1] + 2) - 5
    a = np.arange(count, dtype=np.float32)
    source, target = floats(driver, a), driver.allocate(4 * count + 4)
    driver.fill(target, 0, 4 * count + 4, b"\xee")
    with LoadedLibrary(driver, library("webgpu")) as loaded:
        loaded.call(
            "add_one", [TensorUse(each, 0, a.shape, "float32") for each in (source, target)]
        )
    assert np.array_equal(read(driver, target)[:-1], a + 1)
    assert bytes(driver.read(target, 4 * count, 4)) == b"\xee" * 4
    for buffer in (source, target):
        driver.free(buffer)


def test_a_kernel_that_asks_for_the_length_of_a_binding_gets_the_windows(driver: Driver) -> None:
    kernel = load(driver, copy(size="1", extra=" + arrayLength(&a)"), "copy")
    source, target = driver.allocate(4096), driver.allocate(4)
    driver.fill(source, 0, 4096, b"\0")
    uses = [BufferUse(target, 0, 4), BufferUse(source, 0, 400, behind=1000)]
    driver.launch(kernel, uses, (1, 1, 1), (1, 1, 1))
    assert bytes(driver.read(target, 0, 4)) == (100).to_bytes(4, "little")


def test_passes_are_encoded_by_wgpus_objects_where_its_calls_are_not_known(
    driver: Driver, add: LoadedKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert commands.calls_below() is not None, "this wgpu names its native calls otherwise"
    monkeypatch.setattr(commands, "calls_below", lambda: None)
    buffer = floats(driver, np.zeros(300, np.float32))
    driver.launch_all(driver.bind([_bound(add, buffer, 800, 0)]))
    assert read(driver, buffer).tolist() == [0.0] * 200 + [3.0] * 100


def test_disjoint_windows_of_one_buffer_are_read_and_written_with_no_copy(
    driver: Driver, add: LoadedKernel
) -> None:
    a = np.arange(1024, dtype=np.float32)
    buffer = floats(driver, a)
    sequence = driver.bind([_bound(add, buffer, 2048, 0)])
    assert (sequence.stand_ins, sequence.variants) == (0, 1)
    driver.launch_all(sequence)
    a[512:612] = a[:100] + 3
    assert np.array_equal(read(driver, buffer), a)


@pytest.mark.parametrize(
    ("to", "at", "stand_ins"),
    [(256, 0, 1), (0, 0, 1), (2052, 4, 2), (4, 4, 2), (2050, 2, 2), (6, 2, 2)],
    ids=["overlap", "in place", "unaligned", "unaligned in place", "odd", "odd overlap"],
)
def test_other_windows_of_one_buffer_are_copied_and_counted(
    driver: Driver, add: LoadedKernel, to: int, at: int, stand_ins: int
) -> None:
    before = np.arange(4096, dtype=np.uint32).astype(np.uint8).tobytes()
    values = np.arange(100, dtype=np.float32)
    expected = bytearray(before)
    expected[at : at + 400] = values.tobytes()
    buffer = driver.allocate(4096)
    driver.write(buffer, 0, memoryview(bytes(expected)))
    sequence = driver.bind([_bound(add, buffer, to, at)])
    assert sequence.stand_ins == stand_ins
    driver.launch_all(sequence)
    expected[to : to + 400] = (values + 3).tobytes()
    assert bytes(driver.read(buffer, 0, 4096)) == expected


def test_two_written_windows_must_not_overlap(driver: Driver) -> None:
    both = copy(size="64").replace("<storage, read>", "<storage, read_write>")
    kernel = load(driver, both, "copy")
    buffer = driver.allocate(1024)
    with pytest.raises(InputError, match=r"'copy' is to write two windows that overlap"):
        driver.launch(
            kernel, [BufferUse(buffer, 0, 512), BufferUse(buffer, 256, 256)], (1, 1, 1), (64, 1, 1)
        )


def test_no_kernels_take_no_time(driver: Driver) -> None:
    driver.begin_timing()
    nothing = driver.end_timing()
    driver.finish()
    assert driver.description.details["kernel_time"] != "timestamp queries" or nothing() == 0


def test_a_sequence_of_any_number_of_passes_is_timed(driver: Driver, add: LoadedKernel) -> None:
    """A copy ends a pass, and a set of queries holds those of 2048."""
    buffer = floats(driver, np.zeros(300, np.float32))
    sequence = driver.bind([_bound(add, buffer, 800, 4)] * 2100)
    driver.begin_timing()
    driver.launch_all(sequence)
    elapsed = driver.end_timing()
    driver.finish()
    assert elapsed() > 0
    assert read(driver, buffer).tolist() == [0.0] * 200 + [3.0] * 100


def _bound(kernel: LoadedKernel, buffer: Buffer, to: int, at: int) -> BoundLaunch:
    """`kernel` over 100 elements of one buffer."""
    uses = (BufferUse(buffer, to, 400), BufferUse(buffer, at, 400))
    scalars = (ScalarUse(100, "int32"), ScalarUse(3, "float32"))
    return BoundLaunch(kernel, (*uses, *scalars), (2, 1, 1), (64, 1, 1))
