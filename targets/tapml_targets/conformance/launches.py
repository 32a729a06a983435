"""Cases about kernels: what they are given, in which order they run, and what they leave alone."""

from __future__ import annotations

import struct
from typing import Final

from tapml_targets.conformance.bench import Bench, NotOfferedError, expect, expect_equal
from tapml_targets.conformance_kernels import ADD, BITS, OVERRUN, SCALE, SLOW, THREADS, KernelText
from tapml_targets.driver import BufferUse

_SCALARS: Final = {
    "int32": (-(2**31), 2**31 - 1, -7),
    "uint32": (2**32 - 1, 0, 2**31),
    "float32": (16777216, -3, 1 << 53),
}
_TIMED_ROUNDS: Final = 5
_ROUNDS: Final = 200
_ROUND_BYTES: Final = 1 << 20
_MOST_GROWTH_BYTES: Final = 64 << 20


def scalars_of_every_dtype(bench: Bench) -> None:
    """Numbers reach a kernel exactly, at the edges of their dtype, between others."""
    for dtype, values in _SCALARS.items():
        kernel = KernelText(
            "given", "o[i] = value;", (), {"first": "int32", "value": dtype, "last": "int32"}, dtype
        )
        loaded, target = bench.load(kernel), bench.put(bytes(12))
        form = {"int32": "i", "uint32": "I", "float32": "f"}[dtype]
        for value in values:
            bench.run(bench.bound(kernel, loaded, [(target, 0)], 3, first=1, value=value, last=2))
            found = struct.unpack(f"<3{form}", bench.driver.read(target, 0, 12))
            expect_equal(found, (value,) * 3, f"{dtype} {value}")


def every_bit_of_an_element(bench: Bench) -> None:
    """A kernel that copies words keeps NaNs, denormals and signs of zero."""
    words = (0x7FC00001, 0xFFC12345, 0x7F800001, 0x80000000, 0x7F800000, 1, 0x807FFFFF, 0)
    source, target = bench.put(struct.pack("<8I", *words)), bench.put(bytes(32))
    bench.run(bench.bound(BITS, bench.load(BITS), [(target, 0), (source, 0)], 8))
    expect_equal(struct.unpack("<8I", bench.driver.read(target, 0, 32)), words, "the words")


def order_of_launches(bench: Bench) -> None:
    """Launches that depend on each other run in order, also with a copy between them."""
    add, scale = bench.load(ADD), bench.load(SCALE)
    first, second = bench.floats([1.0] * 100), bench.floats([0.0] * 100)
    for _ in range(8):
        bench.run(
            bench.bound(ADD, add, [(second, 0), (first, 0)], 100, amount=1),
            bench.bound(SCALE, scale, [(first, 0), (second, 0)], 100),
        )
        bench.driver.copy(first, 0, second, 0, 400)
    # x becomes 2 (x + 1), eight times.
    expect_equal(bench.read_floats(second, 100), (766.0,) * 100, "eight rounds of 2 (x + 1)")


def work_is_done_before_it_is_read(bench: Bench) -> None:
    """A read waits for the launches before it, however long they take."""
    count = 16 * THREADS
    target = bench.put(bytes(4 * count))
    bench.run(bench.bound(SLOW, bench.load(SLOW), [(target, 0)], count))
    found = struct.unpack(f"<{count}I", bench.driver.read(target, 0, 4 * count))
    factor, summand = 1, 0
    for _ in range(60000):
        factor, summand = factor * 1664525 % 2**32, (summand * 1664525 + 1013904223) % 2**32
    expected = tuple((factor * i + summand) % 2**32 for i in range(count))
    expect_equal(found, expected, "what a long kernel writes")


def a_sequence_is_reused(bench: Bench) -> None:
    """A sequence that was bound once gives the same each time, with all its own arguments."""
    add = bench.load(ADD)
    first, second = bench.floats(range(50)), bench.floats([0.0] * 50)
    launches = [
        bench.bound(ADD, add, [(target, 0), (source, 0)], 50, amount=amount)
        for target, source, amount in ((second, first, 1), (first, second, 2))
    ]
    sequence = bench.driver.bind(launches * 5)
    bench.driver.launch_all(sequence)
    bench.driver.launch_all(sequence)
    expected = tuple(each + 30.0 for each in range(50))
    expect_equal(bench.read_floats(first, 50), expected, "ten rounds of + 3")


def misaligned_windows(bench: Bench) -> None:
    """Windows that begin at any element are read and written there, side by side in a buffer."""
    if not bench.has_pointers:
        raise NotOfferedError("kernels take whole tensors, which begin where the platform says")
    scale = bench.load(SCALE)
    for offset in (4, 12, 68, 260):
        buffer = bench.floats([float(i) for i in range(200)])
        bench.run(bench.bound(SCALE, scale, [(buffer, 400), (buffer, offset)], 33))
        expected = [float(i) for i in range(200)]
        expected[100:133] = [2.0 * (offset // 4 + i) for i in range(33)]
        expect_equal(bench.read_floats(buffer, 200), tuple(expected), f"window at byte {offset}")
        bench.driver.free(buffer)


def guard_bands(bench: Bench) -> None:
    """A write behind a window, within its guard band, is seen there; nothing else changes."""
    if not bench.has_pointers:
        raise NotOfferedError("kernels take whole tensors without a band behind them")
    overrun = bench.load(OVERRUN)
    source, target = bench.floats([1.0] * 8), bench.floats([5.0] * 72)
    launch = bench.bound(OVERRUN, overrun, [(target, 0), (source, 0)], 8, place=9)
    _, *others = launch.arguments
    bench.run(launch._replace(arguments=(BufferUse(target, 0, 32, behind=256), *others)))
    expected = (1.0,) * 8 + (5.0, 13.0) + (5.0,) * 62
    expect_equal(bench.read_floats(target, 72), expected, "a window of 8 with its guard band")


def grids_above_65535(bench: Bench) -> None:
    """A grid of more blocks than one axis of most devices has runs whole."""
    if not bench.has_pointers:
        raise NotOfferedError("kernels run once, without a grid")
    count = (1 << 16) * THREADS + 5
    source, target = bench.driver.allocate(4 * count), bench.driver.allocate(4 * count)
    bench.driver.fill(source, 0, 4 * count, struct.pack("<f", 3.0))
    bench.driver.fill(target, 0, 4 * count, bytes(4))
    bench.run(bench.bound(SCALE, bench.load(SCALE), [(target, 0), (source, 0)], count))
    found = bytes(bench.driver.read(target, 0, 4 * count))
    wrong = count - found.count(struct.pack("<f", 6.0))
    bench.driver.free(source)
    bench.driver.free(target)
    expect(not wrong, f"{wrong} of {count} elements were not computed")


def a_launch_over_nothing(bench: Bench) -> None:
    """A launch over no element changes nothing, also with empty buffers."""
    add = bench.load(ADD)
    target, empty = bench.floats([1.0] * 4), bench.driver.allocate(0)
    for output in (target, empty):
        bench.run(bench.bound(ADD, add, [(output, 0), (empty, 0)], 0, amount=1))
    if bench.has_pointers:
        # Of no block, where the kernel itself would write.
        whole = bench.bound(ADD, add, [(target, 0), (target, 0)], 4, amount=1)
        bench.run(whole._replace(grid=(0, 1, 1)))
    bench.driver.finish()
    expect_equal(bench.read_floats(target, 4), (1.0,) * 4, "the elements beside it")


def kernels_are_timed(bench: Bench) -> None:
    """The time of a launch is above 0, and that of many is above it."""
    add, count = bench.load(ADD), 1 << 16
    source, target = bench.floats([1.0] * count), bench.driver.allocate(4 * count)
    launch = bench.bound(ADD, add, [(target, 0), (source, 0)], count, amount=1)

    def elapsed_by(launches: int) -> int:
        bench.driver.begin_timing()
        bench.run(*[launch] * launches)
        elapsed = bench.driver.end_timing()
        bench.driver.finish()
        return elapsed()

    # A driver may still compile at the first launch, and a busy machine may interrupt one.
    one = min(elapsed_by(1) for _ in range(_TIMED_ROUNDS))
    many = elapsed_by(32)
    expect(0 < one < many, f"1 launch took {one} ns, 32 took {many} ns")


def rounds_without_growth(bench: Bench) -> None:
    """Two hundred rounds of allocating, launching and freeing do not keep memory."""
    add = bench.load(ADD)
    # Of each buffer a part: a simulated device takes long for all.
    count = _ROUND_BYTES // 64
    before = 0
    for turn in range(_ROUNDS):
        source, target = (bench.put(bytes(_ROUND_BYTES)) for _ in range(2))
        bench.run(bench.bound(ADD, add, [(target, 0), (source, 0)], count, amount=2))
        expect_equal(bench.read_floats(target, 1, 4 * count - 4), (2.0,), f"round {turn + 1}")
        bench.driver.free(source)
        bench.driver.free(target)
        if turn == _ROUNDS // 10:
            before = bench.held_bytes()
    grown = bench.held_bytes() - before
    expect(grown < _MOST_GROWTH_BYTES, f"what is held grew by {grown >> 20} MiB")


CASES: Final = (
    scalars_of_every_dtype,
    every_bit_of_an_element,
    order_of_launches,
    work_is_done_before_it_is_read,
    a_sequence_is_reused,
    misaligned_windows,
    guard_bands,
    grids_above_65535,
    a_launch_over_nothing,
    kernels_are_timed,
    rounds_without_growth,
)
