"""What a WebGPU device does with memory and kernels, on every adapter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tapml_targets.driver import BoundLaunch, Buffer, BufferUse, Driver, ScalarUse, TensorUse
from tapml_targets.errors import InputError
from tapml_targets.evaluator import LoadedLibrary
from tapml_targets.webgpu import commands
from tapml_targets.webgpu.programs import LoadedKernel
from tests.targets.webgpu.wgsl import (
    ADD,
    SLOW,
    add_library,
    copy,
    load,
    overrun_library,
    slow_result,
)

BYTES = 67
PLACES = st.integers(0, BYTES)
STEPS = st.one_of(
    st.tuples(st.just("write"), PLACES, st.binary(max_size=BYTES)),
    st.tuples(st.just("fill"), PLACES, PLACES, st.binary(min_size=1, max_size=9)),
    st.tuples(st.just("copy"), PLACES, PLACES, PLACES),
    st.tuples(st.just("copy within"), PLACES, PLACES, PLACES),
)


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


def launch(
    driver: Driver, kernel: LoadedKernel, windows: Sequence[tuple[Buffer, int]], count: int
) -> None:
    """Launch `add` over `count` elements from byte offsets, the output's first; it adds 3."""
    uses = [BufferUse(buffer, offset, 4 * count) for buffer, offset in windows]
    scalars = [ScalarUse(count, "int32"), ScalarUse(3, "float32")]
    driver.launch(kernel, [*uses, *scalars], (-(-count // 64), 1, 1), (64, 1, 1))


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


@pytest.mark.parametrize("pattern", [b"\xa5", b"abc", bytes(range(16)), bytes(5000)])
def test_a_large_window_is_filled_to_its_last_byte_and_no_further(
    driver: Driver, pattern: bytes
) -> None:
    nbytes = (1 << 20) + 4099
    buffer = driver.allocate(nbytes + 8)
    driver.fill(buffer, 0, nbytes + 8, b"\xee")
    driver.fill(buffer, 4, nbytes, pattern)
    expected = b"\xee" * 4 + (pattern * (nbytes // len(pattern) + 1))[:nbytes] + b"\xee" * 4
    assert bytes(driver.read(buffer, 0, nbytes + 8)) == expected
    driver.free(buffer)


def test_more_is_read_than_one_piece_holds(driver: Driver) -> None:
    data = np.random.default_rng(0).bytes((9 << 20) + 3)
    buffer = driver.allocate(len(data))
    driver.write(buffer, 0, memoryview(data))
    target = bytearray(len(data) - 1)
    driver.read_into(buffer, 1, memoryview(target))
    assert target == data[1:]
    driver.free(buffer)


def test_every_bit_of_a_float_passes_a_kernel_that_copies(driver: Driver) -> None:
    bits = np.array(
        [0x7FC00001, 0xFFC12345, 0x7F800001, 0x80000000, 0x7F800000, 1, 0x807FFFFF, 0], np.uint32
    )
    source, target = (floats(driver, array.view(np.float32)) for array in (bits, 0 * bits))
    kernel = load(driver, copy(size="8"), "copy")
    driver.launch(
        kernel, [BufferUse(target, 0, 32), BufferUse(source, 0, 32)], (1, 1, 1), (8, 1, 1)
    )
    assert read(driver, target).view(np.uint32).tolist() == bits.tolist()


def test_a_library_runs_through_the_evaluator_again_and_again(driver: Driver) -> None:
    a = np.arange(1000, dtype=np.float32)
    buffers = [floats(driver, a), floats(driver, 0 * a), floats(driver, 0 * a)]
    uses = [TensorUse(buffer, 0, a.shape, "float32") for buffer in buffers]
    with LoadedLibrary(driver, add_library()) as loaded:
        recorded = loaded.record("add_two", uses)
        for turn in range(3):
            driver.write(buffers[0], 0, memoryview((a + turn).tobytes()))
            loaded.run(recorded) if turn else loaded.call("add_two", uses)
            assert np.array_equal(read(driver, buffers[2]), a + turn + 2)


def test_a_grid_wider_than_the_device_takes_is_folded(driver: Driver) -> None:
    count = 64 * (driver.description.limits.max_grid[1] + 2) - 5
    a = np.arange(count, dtype=np.float32)
    buffers = [floats(driver, a), driver.allocate(4 * count), driver.allocate(4 * count + 4)]
    driver.fill(buffers[2], 0, 4 * count + 4, b"\xee")
    with LoadedLibrary(driver, add_library()) as loaded:
        loaded.call("add_two", [TensorUse(buffer, 0, a.shape, "float32") for buffer in buffers])
    assert np.array_equal(read(driver, buffers[2])[:-1], a + 2)
    assert bytes(driver.read(buffers[2], 4 * count, 4)) == b"\xee" * 4
    for buffer in buffers:
        driver.free(buffer)


def test_a_write_behind_an_output_or_a_workspace_damages_a_guard_band(driver: Driver) -> None:
    """WebGPU holds a kernel to what is bound, so the guard band is bound as well."""
    count, guard = 100, 4096
    a = np.arange(count, dtype=np.float32)
    source, target = floats(driver, a), driver.allocate(2 * guard + 4 * count)
    output = TensorUse(target, guard, a.shape, "float32")
    for where, expected in ((count - 1, (True, ())), (count, (False, ("w",)))):
        driver.fill(target, 0, 2 * guard + 4 * count, b"\xcd")
        with LoadedLibrary(driver, overrun_library(where)) as loaded:
            uses = [TensorUse(source, 0, a.shape, "float32"), output]
            report = loaded.call("overrun", uses, workspace_poison=b"\xff")
        behind = bytes(driver.read(target, guard + 4 * count, guard))
        assert (behind == b"\xcd" * guard, report.damaged_guards) == expected


def test_a_kernel_that_asks_for_the_length_of_a_binding_gets_the_windows(driver: Driver) -> None:
    kernel = load(driver, copy(size="1", extra=" + arrayLength(&a)"), "copy")
    source, target = driver.allocate(4096), driver.allocate(4)
    driver.fill(source, 0, 4096, b"\0")
    uses = [BufferUse(target, 0, 4), BufferUse(source, 0, 400, behind=1000)]
    driver.launch(kernel, uses, (1, 1, 1), (1, 1, 1))
    assert bytes(driver.read(target, 0, 4)) == (100).to_bytes(4, "little")


def test_a_launch_over_nothing_does_nothing(driver: Driver, add: LoadedKernel) -> None:
    buffer = driver.allocate(0)
    launch(driver, add, [(buffer, 0), (buffer, 0)], 0)
    driver.finish()


def test_a_kernel_may_be_given_a_window_of_no_bytes(driver: Driver, add: LoadedKernel) -> None:
    target, empty = floats(driver, np.ones(4, np.float32)), driver.allocate(0)
    uses = [BufferUse(target, 0, 16), BufferUse(empty, 0, 0)]
    driver.launch(
        add, [*uses, ScalarUse(0, "int32"), ScalarUse(1, "float32")], (1, 1, 1), (64, 1, 1)
    )
    assert read(driver, target).tolist() == [1, 1, 1, 1]


def test_a_read_waits_for_the_work_before_it(driver: Driver) -> None:
    """A paper's porter read zeros: the work had been submitted and was not done."""
    count = 64 * 64
    target = driver.allocate(4 * count)
    driver.fill(target, 0, 4 * count, b"\0")
    kernel = load(driver, SLOW, "slow")
    driver.launch(kernel, [BufferUse(target, 0, 4 * count)], (count // 64, 1, 1), (64, 1, 1))
    found = np.frombuffer(driver.read(target, 0, 4 * count), np.uint32)
    assert np.array_equal(found, slow_result(count))


@pytest.mark.parametrize("below", [True, False], ids=["below wgpu's objects", "by them"])
def test_a_sequence_is_bound_once_and_launched_in_order(
    driver: Driver, add: LoadedKernel, below: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert commands.calls_below() is not None, "this wgpu names what passes are told otherwise"
    if not below:
        monkeypatch.setattr(commands, "calls_below", lambda: None)
    a = np.arange(100, dtype=np.float32)
    first, second = floats(driver, a), floats(driver, a)
    scalars = (ScalarUse(100, "int32"), ScalarUse(1, "float32"))
    there_and_back = [
        BoundLaunch(
            add, (BufferUse(o, 0, 400), BufferUse(i, 0, 400), *scalars), (2, 1, 1), (64, 1, 1)
        )
        for o, i in ((second, first), (first, second)) * 10
    ]
    sequence = driver.bind(there_and_back)
    driver.launch_all(sequence)
    driver.launch_all(sequence)
    assert np.array_equal(read(driver, first), a + 40)


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


def test_kernels_are_timed(driver: Driver, add: LoadedKernel) -> None:
    a = floats(driver, np.ones(64 << 10, np.float32))
    o = driver.allocate(256 << 10)
    driver.begin_timing()
    for _ in range(3):
        launch(driver, add, [(o, 0), (a, 0)], 64 << 10)
    elapsed = driver.end_timing()
    driver.finish()
    assert elapsed() > 0
    driver.begin_timing()
    nothing = driver.end_timing()
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
