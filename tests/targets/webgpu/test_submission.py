"""When the work of a WebGPU device is handed to its queue, and what goes together."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tapml.package.in_process import open_in_process
from tapml_rpc.remote import RemoteTensor
from tapml_rpc.session import Session
from tapml_targets.driver import Buffer, BufferUse, DeviceDescription, Driver
from tapml_targets.errors import DeviceLostError
from tapml_targets.webgpu import commands
from tapml_targets.webgpu import driver as webgpu_driver
from tests.targets.libraries import library
from tests.targets.webgpu.wgsl import copy, load

BYTES = 256


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many dispatches each submission held, from here on."""
    found: list[int] = []
    encode = commands.encode

    def encode_and_count(device: object, given: list[object], queries: object = None) -> object:
        found.append(sum(isinstance(each, commands.Dispatch) for each in given))
        return encode(device, given, queries)  # type: ignore[arg-type]

    monkeypatch.setattr(commands, "encode", encode_and_count)
    return found


@pytest.fixture
def launch(driver: Driver) -> Callable[[], tuple[Buffer, Buffer]]:
    """Launch a kernel that copies from the second buffer, of ones, to the first."""
    kernel = load(driver, copy(), "copy")

    def launched() -> tuple[Buffer, Buffer]:
        target, source = driver.allocate(BYTES), driver.allocate(BYTES)
        driver.write(source, 0, memoryview(b"\1" * BYTES))
        uses = [BufferUse(buffer, 0, BYTES) for buffer in (target, source)]
        driver.launch(kernel, uses, (1, 1, 1), (64, 1, 1))
        return target, source

    return launched


def test_a_launch_and_what_is_read_behind_it_are_one_submission(
    driver: Driver, launch: Callable[[], tuple[Buffer, Buffer]], submitted: list[int]
) -> None:
    target, _ = launch()
    assert submitted == []
    assert bytes(driver.read(target, 0, BYTES)) == b"\1" * BYTES
    assert submitted == [1]


def test_a_wait_submits_pending_commands(
    driver: Driver, launch: Callable[[], object], submitted: list[int]
) -> None:
    launch()
    driver.finish()
    assert submitted == [1]


def test_a_flush_submits_pending_commands(
    driver: Driver, launch: Callable[[], object], submitted: list[int]
) -> None:
    launch()
    driver.flush()  # type: ignore[attr-defined]
    driver.flush()  # type: ignore[attr-defined]
    assert submitted == [1]


def test_many_launches_begin_while_others_are_still_encoded(
    driver: Driver, submitted: list[int]
) -> None:
    kernel = load(driver, copy(), "copy")
    uses = [BufferUse(driver.allocate(BYTES), 0, BYTES) for _ in range(2)]
    for _ in range(100):
        driver.launch(kernel, uses, (1, 1, 1), (64, 1, 1))
    assert submitted == [65]
    driver.finish()
    assert submitted == [65, 35]


def test_a_write_comes_behind_the_launches_before_it(
    driver: Driver, launch: Callable[[], tuple[Buffer, Buffer]]
) -> None:
    target, source = launch()
    driver.write(source, 0, memoryview(b"\2" * BYTES))
    assert bytes(driver.read(target, 0, BYTES)) == b"\1" * BYTES
    assert bytes(driver.read(source, 0, BYTES)) == b"\2" * BYTES


def test_memory_may_be_freed_behind_the_launch_that_reads_it(
    driver: Driver, launch: Callable[[], tuple[Buffer, Buffer]]
) -> None:
    """wgpu ends the process where it is submitted afterwards."""
    target, source = launch()
    driver.free(source)
    assert bytes(driver.read(target, 0, BYTES)) == b"\1" * BYTES


def test_a_timed_launch_excludes_earlier_launches(
    driver: Driver, launch: Callable[[], object], submitted: list[int]
) -> None:
    launch()
    driver.begin_timing()
    launch()
    elapsed = driver.end_timing()
    driver.finish()
    assert [each for each in submitted if each] == [1, 1]
    assert elapsed() >= 0


@pytest.fixture
def session(device: DeviceDescription) -> Iterator[Session]:
    with open_in_process(device) as opened:
        yield opened


def test_a_batch_ends_with_everything_submitted(session: Session, submitted: list[int]) -> None:
    uploaded = session.upload(library("webgpu"))
    tensors = [RemoteTensor(session.allocate(64), 0, (16,), "float32") for _ in range(2)]
    with session.batch() as batch:
        batch.call(uploaded, "double_add", tensors)
    assert submitted == [2]


def test_a_loss_found_at_a_batchs_end_names_its_kernels(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploaded = session.upload(library("webgpu"))
    tensors = [RemoteTensor(session.allocate(64), 0, (16,), "float32") for _ in range(2)]
    launch_all = webgpu_driver.WebGPUDriver.launch_all

    def launch_and_lose(self: webgpu_driver.WebGPUDriver, sequence: object) -> None:
        launch_all(self, sequence)  # type: ignore[arg-type]
        self._device.destroy()

    monkeypatch.setattr(webgpu_driver.WebGPUDriver, "launch_all", launch_and_lose)
    with pytest.raises(DeviceLostError, match=r"kernels? 'scale'.* the device is lost") as caught:
        with session.batch() as batch:
            batch.call(uploaded, "double_add", tensors)
        session.fence()
    assert caught.value.command.startswith("call(")
