"""What a launch is on a Vulkan device: windows, grids, numbers, recorded sequences."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tapml_targets.conformance_kernels import ADD, THREADS, arguments, load
from tapml_targets.driver import BoundLaunch, BufferUse, Driver, ScalarUse
from tapml_targets.errors import CompileError, InputError
from tapml_targets.library import CodeModule, Kernel

BYTES = b"""\
#version 450
#extension GL_EXT_shader_8bit_storage : require
layout(local_size_x = 1) in;
layout(std430, binding = 0) buffer First { uint8_t first[]; };
layout(std430, binding = 1) buffer Second { uint8_t second[]; };
void main() { for (int i = 0; i < 5; i++) { first[i] = uint8_t(1); second[i] = uint8_t(2); } }
"""


def ones(driver: Driver, count: int) -> object:
    buffer = driver.allocate(4 * count)
    driver.write(buffer, 0, memoryview(np.ones(count, np.float32).tobytes()))
    return buffer


def barriers_of(driver: Driver, sequence: object, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a sequence for the first time; how many barriers are recorded between its launches."""
    queue = driver._queue  # type: ignore[attr-defined]
    counted = []
    barrier = queue.barrier

    def count(commands: object) -> None:
        counted.append(commands)
        barrier(commands)

    monkeypatch.setattr(queue, "barrier", count)
    driver.launch_all(sequence)
    monkeypatch.undo()
    return len(counted)


def test_a_grid_wider_than_the_device_goes_on_along_another_axis(driver: Driver) -> None:
    count = 65536 * THREADS + 3
    source, target = ones(driver, count), driver.allocate(4 * count)
    given = arguments(driver, ADD, [(target, 0), (source, 0)], count, amount=2)
    assert given[1][0] > 65535
    driver.launch(load(driver, ADD), *given)
    found = np.frombuffer(driver.read(target, 0, 4 * count), np.float32)
    assert np.array_equal(found, np.full(count, 3, np.float32))
    for buffer in (source, target):
        driver.free(buffer)


def test_a_block_other_than_the_texts_is_refused(driver: Driver) -> None:
    source, target = ones(driver, 8), driver.allocate(32)
    uses, grid, _ = arguments(driver, ADD, [(target, 0), (source, 0)], 8, amount=2)
    with pytest.raises(InputError, match=r"'add' is written for blocks of \(64, 1, 1\)"):
        driver.launch(load(driver, ADD), uses, grid, (32, 1, 1))


def test_a_number_that_does_not_fit_is_refused(driver: Driver) -> None:
    source, target = ones(driver, 8), driver.allocate(32)
    uses, grid, block = arguments(driver, ADD, [(target, 0), (source, 0)], 8, amount=2)
    large = (*uses[:2], ScalarUse(1 << 40, "int64"), uses[3])
    with pytest.raises(CompileError, match=f"'n' = {1 << 40}"):
        driver.launch(load(driver, ADD), large, grid, block)


def test_overlapping_windows_that_are_not_aligned_are_refused(driver: Driver) -> None:
    both = ones(driver, 32)
    with pytest.raises(InputError, match="two arguments overlap and one starts at byte 4"):
        driver.launch(
            load(driver, ADD), *arguments(driver, ADD, [(both, 4), (both, 12)], 8, amount=2)
        )


def test_a_window_at_any_word_may_be_read_and_written_at_once(driver: Driver) -> None:
    both = ones(driver, 32)
    driver.launch(load(driver, ADD), *arguments(driver, ADD, [(both, 4), (both, 4)], 8, amount=2))
    found = np.frombuffer(driver.read(both, 0, 128), np.float32)
    assert found.tolist() == [1.0] + 8 * [3.0] + 23 * [1.0]


@pytest.mark.parametrize("places", [(4, 9), (9, 4), (22, 17)])
def test_windows_that_end_within_a_word_leave_the_next_one_alone(
    driver: Driver, places: tuple[int, int]
) -> None:
    if "int8" not in driver.description.limits.features:
        pytest.skip(f"{driver.description.name} has no bytes in buffers")
    kernel = driver.load(CodeModule("glsl", BYTES), [Kernel("main", "main", 0, 1)])["main"]
    both, expected = driver.allocate(32), bytearray(b"\x09" * 32)
    driver.fill(both, 0, 32, b"\x09")
    driver.launch(kernel, [BufferUse(both, at, 5) for at in places], (1, 1, 1), (1, 1, 1))
    for value, at in zip(b"\x01\x02", places, strict=True):
        expected[at : at + 5] = bytes([value]) * 5
    assert bytes(driver.read(both, 0, 32)) == expected


def test_a_sequence_runs_again_between_other_work(driver: Driver) -> None:
    kernel = load(driver, ADD)
    first, second = ones(driver, 100), ones(driver, 100)
    sequence = driver.bind(
        [
            BoundLaunch(kernel, *arguments(driver, ADD, [(target, 0), (source, 0)], 100, amount=1))
            for target, source in ((second, first), (first, second))
        ]
    )
    for _ in range(3):
        driver.launch_all(sequence)
        driver.launch(kernel, *arguments(driver, ADD, [(first, 0), (first, 0)], 100, amount=10))
    del sequence, kernel
    gc.collect()
    assert np.frombuffer(driver.read(first, 0, 400), np.float32).tolist() == [37.0] * 100


@pytest.mark.parametrize(
    ("moves", "barriers"),
    [
        ([(1, 0), (2, 0)], 0),  # both read
        ([(1, 0), (2, 1)], 1),  # a read after a write
        ([(1, 0), (0, 2)], 1),  # a write after a read
        ([(1, 0), (1, 2)], 1),  # a write after a write
        ([(1, 0), (3, 2), (2, 1), (0, 3)], 1),
        ([(1, 0)] * 3, 2),
    ],
)
def test_launches_of_a_sequence_wait_only_for_what_they_would_disturb(
    driver: Driver,
    moves: list[tuple[int, int]],
    barriers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`moves` are (to, from): a buffer becomes another plus 1."""
    kernel, buffers = load(driver, ADD), [ones(driver, 64) for _ in range(4)]
    sequence = driver.bind(
        [
            BoundLaunch(
                kernel,
                *arguments(driver, ADD, [(buffers[to], 0), (buffers[of], 0)], 64, amount=1),
            )
            for to, of in moves
        ]
    )
    assert barriers_of(driver, sequence, monkeypatch) == barriers
    expected = [1.0] * 4
    for to, of in moves:
        expected[to] = expected[of] + 1
    found = [np.frombuffer(driver.read(each, 0, 256), np.float32) for each in buffers]
    assert [each.tolist() for each in found] == [[value] * 64 for value in expected]


@pytest.mark.parametrize(("offset", "barriers"), [(1024, 0), (0, 1)])
def test_windows_of_one_buffer_wait_where_they_overlap(
    driver: Driver, offset: int, barriers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, source = ones(driver, 512), ones(driver, 64)
    kernel = load(driver, ADD)
    sequence = driver.bind(
        [
            BoundLaunch(kernel, *arguments(driver, ADD, [(both, at), (source, 0)], 64, amount=1))
            for at in (0, offset)
        ]
    )
    assert barriers_of(driver, sequence, monkeypatch) == barriers


def test_more_launches_than_one_submission_holds_stay_in_order(driver: Driver) -> None:
    kernel, both = load(driver, ADD), ones(driver, 4)
    for _ in range(1000):
        driver.launch(kernel, *arguments(driver, ADD, [(both, 0), (both, 0)], 4, amount=1))
    assert np.frombuffer(driver.read(both, 0, 16), np.float32).tolist() == [1001.0] * 4


def test_what_is_in_use_is_freed_behind_its_work(driver: Driver) -> None:
    kernel, target = load(driver, ADD), driver.allocate(400)
    for turn in range(50):
        source = ones(driver, 100)
        driver.launch(kernel, *arguments(driver, ADD, [(target, 0), (source, 0)], 100, amount=turn))
        driver.free(source)
    assert np.frombuffer(driver.read(target, 0, 400), np.float32).tolist() == [50.0] * 100


def test_a_kernel_is_held_to_its_buffers(driver: Driver) -> None:
    """A number that sends it beyond them changes nothing elsewhere."""
    kernel, source = load(driver, ADD), ones(driver, 64)
    target, beside = driver.allocate(64), ones(driver, 64)
    uses = (BufferUse(target, 0, 64), BufferUse(source, 0, 256))
    numbers = (ScalarUse(64, "int32"), ScalarUse(1, "float32"))
    driver.launch(kernel, (*uses, *numbers), (1, 1, 1), (THREADS, 1, 1))
    assert np.frombuffer(driver.read(target, 0, 64), np.float32).tolist() == [2.0] * 16
    assert np.frombuffer(driver.read(beside, 0, 256), np.float32).tolist() == [1.0] * 64
