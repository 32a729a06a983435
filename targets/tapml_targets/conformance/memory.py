"""Cases about memory: bytes move at any place as they do on the host."""

from __future__ import annotations

import random
from typing import Final

from tapml_targets.conformance.bench import Bench, expect, expect_equal, expect_refusal
from tapml_targets.errors import InputError

_BYTES: Final = 67
_LARGE: Final = (1 << 20) + 4099
_ROUNDS: Final = 60


def bytes_at_odd_offsets(bench: Bench) -> None:
    """Writes, fills and copies at any byte, in any order, leave what they leave on the host."""
    driver, chance = bench.driver, random.Random(0)  # noqa: S311 - test data
    buffers = [bench.put(bytes(_BYTES)) for _ in range(2)]
    models = [bytearray(_BYTES), bytearray(_BYTES)]
    for turn in range(_ROUNDS):
        at, to, size = (chance.randrange(_BYTES + 1) for _ in range(3))
        match turn % 4:
            case 0:
                data = chance.randbytes(min(size, _BYTES - at))
                driver.write(buffers[0], at, memoryview(data))
                models[0][at : at + len(data)] = data
            case 1:
                size, pattern = min(size, _BYTES - at), chance.randbytes(1 + size % 9)
                driver.fill(buffers[0], at, size, pattern)
                models[0][at : at + size] = (pattern * size)[:size]
            case kind:
                # A copy within a buffer may overlap itself.
                size, target = min(size, _BYTES - at, _BYTES - to), 3 - kind
                driver.copy(buffers[0], at, buffers[target], to, size)
                models[target][to : to + size] = bytes(models[0][at : at + size])
        for name, buffer, model in zip("ab", buffers, models, strict=True):
            found = bytes(driver.read(buffer, 0, _BYTES))
            expect_equal(found, bytes(model), f"buffer {name} after {turn + 1} steps")
    for buffer in buffers:
        driver.free(buffer)


def large_transfers(bench: Bench) -> None:
    """Megabytes arrive whole, also in memory that is given, and written data may be reused."""
    data = bytearray(random.Random(1).randbytes(_LARGE))  # noqa: S311 - test data
    expected = bytes(data)
    buffer = bench.put(data)
    data[:] = bytes(_LARGE)
    target = bytearray(_LARGE - 1)
    bench.driver.read_into(buffer, 1, memoryview(target))
    expect(bytes(target) == expected[1:], "memory that was given holds other bytes than were sent")
    bench.driver.free(buffer)


def large_fills(bench: Bench) -> None:
    """A pattern fills a large window to its last byte and no further."""
    driver = bench.driver
    for pattern in (b"\xa5", b"abc", bytes(range(16)), bytes(range(250)) * 16):
        buffer = driver.allocate(_LARGE + 8)
        driver.fill(buffer, 0, _LARGE + 8, b"\xee")
        driver.fill(buffer, 4, _LARGE, pattern)
        filled = (pattern * (_LARGE // len(pattern) + 1))[:_LARGE]
        found = bytes(driver.read(buffer, 0, _LARGE + 8))
        right = found == b"\xee" * 4 + filled + b"\xee" * 4
        expect(right, f"a pattern of {len(pattern)} bytes fills other bytes than its window")
        driver.free(buffer)


def windows_outside_a_buffer(bench: Bench) -> None:
    """A window outside a buffer is refused by its extent, and so is a pattern of no bytes."""
    driver = bench.driver
    buffer = driver.allocate(10)
    for name, act in {
        "write": lambda: driver.write(buffer, 8, memoryview(b"abc")),
        "read before": lambda: driver.read(buffer, -1, 2),
        "read behind": lambda: driver.read(buffer, 0, 11),
        "fill": lambda: driver.fill(buffer, 10, 1, b"a"),
        "copy": lambda: driver.copy(buffer, 0, buffer, 6, 5),
    }.items():
        expect_refusal(act, InputError, ["outside a buffer of 10 bytes"], name)
    expect_refusal(lambda: driver.fill(buffer, 0, 4, b""), InputError, ["at least one"], "fill")
    driver.free(buffer)
    expect_equal(driver.nbytes(buffer), 0, "bytes of a freed buffer")
    expect_refusal(lambda: driver.read(buffer, 0, 1), InputError, [], "reading a freed buffer")


def allocations_beyond_the_device(bench: Bench) -> None:
    """An allocation that no buffer of the device can have is refused by its size.

    PoCL's largest buffer grows with the memory that is free, so it is not the one that was listed.
    """
    limits = bench.driver.description.limits
    beyond = max(limits.max_buffer_bytes, limits.memory_bytes) + 1
    expect_refusal(lambda: bench.driver.allocate(beyond), InputError, [str(beyond)], "allocate")


CASES: Final = (
    bytes_at_odd_offsets,
    large_transfers,
    large_fills,
    windows_outside_a_buffer,
    allocations_beyond_the_device,
)
