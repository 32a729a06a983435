"""What is OpenCL's own: scalars of every size, overlapping windows, writes before a workspace."""

from __future__ import annotations

from threading import Timer

import numpy as np
import pytest

from tapml_targets.driver import BufferUse, Driver, KernelArgument, ScalarUse
from tapml_targets.errors import InputError, RemoteError
from tapml_targets.evaluator import LoadedLibrary
from tapml_targets.library import CodeModule, Kernel
from tests.targets.libraries import Tensors, library

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


def test_overlapping_misaligned_windows_are_refused(driver: Driver) -> None:
    source = b"__kernel void two(__global int* a, __global int* b) { a[0] = b[1]; }"
    kernel = driver.load(CodeModule("opencl-c", source), [Kernel("two", "two", 0)])["two"]
    buffer = driver.allocate(64)
    arguments = (BufferUse(buffer, 4, 16), BufferUse(buffer, 8, 16))
    with pytest.raises(InputError, match="overlap"):
        driver.launch(kernel, arguments, (1, 1, 1), (1, 1, 1))


@pytest.mark.parametrize("place", [-1, -1000])
def test_a_write_before_a_workspace_is_reported(driver: Driver, place: int) -> None:
    tensors = Tensors(driver)
    uses = [tensors.put(np.zeros(10, np.float32)) for _ in range(2)]
    with LoadedLibrary(driver, library("opencl")) as loaded:
        report = loaded.call("overrun", uses, {"place": place}, workspace_poison=b"\xff")
    assert report.damaged_guards == ("w",)


def test_memory_is_given_back_after_the_work_that_uses_it(driver: Driver) -> None:
    """A process died in NVIDIA's driver while it gave back what was in use, which OpenCL allows."""
    cl = pytest.importorskip("pyopencl")
    memory = driver.allocate(4096)
    queue = driver._queue  # type: ignore[attr-defined]
    held = cl.UserEvent(queue.context)
    cl.enqueue_marker(queue, wait_for=[held])
    driver.write(memory, 0, memoryview(bytes(4096)))
    written = cl.enqueue_marker(queue)
    timer = Timer(0.2, held.set_status, [cl.command_execution_status.COMPLETE])
    timer.start()
    driver.free(memory)
    ended = written.command_execution_status == cl.command_execution_status.COMPLETE
    timer.join()
    assert ended
    with pytest.raises(InputError, match="freed"):
        driver.read(memory, 0, 4)


def test_commands_have_timestamps_while_kernels_are_timed_and_keep_their_order(
    driver: Driver,
) -> None:
    """A driver may take longer for commands that have them, so another queue has them."""
    cl = pytest.importorskip("pyopencl")
    enable = cl.command_queue_properties.PROFILING_ENABLE

    def has_timestamps() -> bool:
        return bool(driver._queue.properties & enable)  # type: ignore[attr-defined]

    first, second = driver.allocate(1 << 20), driver.allocate(1 << 20)
    found = [has_timestamps()]
    for value in b"\x01\x02":
        driver.fill(first, 0, 1 << 20, bytes([value]))
        driver.begin_timing()
        found.append(has_timestamps())
        driver.copy(first, 0, second, 0, 1 << 20)
        driver.fill(first, 0, 1 << 20, b"\x00")
        driver.end_timing()
        found.append(has_timestamps())
        driver.copy(second, 0, first, 4, 4)
        assert bytes(driver.read(first, 0, 12)) == bytes([0] * 4 + [value] * 4 + [0] * 4)
    assert found == [False, True, False, True, False]


def test_a_failure_at_the_end_of_timing_hides_none_of_a_launch(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    cl = pytest.importorskip("pyopencl")

    def fail(*given: object, **named: object) -> None:
        raise cl.RuntimeError("it failed: OUT_OF_RESOURCES")

    with monkeypatch.context() as patch:
        patch.setattr(driver, "_timing", None)
        patch.setattr(cl, "CommandQueue", fail)
        with pytest.raises(RemoteError, match="making a queue with timestamps failed: it failed"):
            driver.begin_timing()
    driver.begin_timing()
    with monkeypatch.context() as patch:
        patch.setattr(cl, "enqueue_marker", fail)
        assert driver.end_timing()() == 0
    with pytest.raises(RemoteError, match="going on with another queue failed: it failed"):
        driver.finish()
    driver.finish()


@pytest.mark.parametrize("told_by", ["finish", "read"])
def test_a_failure_that_is_found_while_memory_is_given_back_is_told_later(
    driver: Driver, told_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hides no error behind which memory is given back, and keeps none of the memory."""
    cl = pytest.importorskip("pyopencl")

    class Failing:
        def __init__(self, queue: object) -> None:
            self.queue = queue

        def finish(self) -> None:
            raise cl.RuntimeError("clFinish failed: OUT_OF_RESOURCES")

    first, second, third = (driver.allocate(64) for _ in range(3))
    with monkeypatch.context() as patch:
        patch.setattr(driver, "_queue", Failing(driver._queue))  # type: ignore[attr-defined]
        for buffer in (first, second):
            driver.free(buffer)
    for buffer in (first, second):
        with pytest.raises(InputError, match="freed"):
            driver.read(buffer, 0, 4)
    with pytest.raises(RemoteError, match=r"the work before this point failed: .*OUT_OF_RESOURCES"):
        driver.finish() if told_by == "finish" else driver.read(third, 0, 4)
    driver.finish()
    driver.free(third)
