"""The driver of Apple's GPUs, over a stand-in of the binding that runs kernels on the simulator."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tapml_targets.conformance.bench import Bench
from tapml_targets.conformance.running import run_cases
from tapml_targets.conformance_kernels import ADD, BITS, built
from tapml_targets.driver import BoundLaunch, BufferUse, DeviceDescription
from tapml_targets.errors import CompileError, DeviceLostError, InputError, RemoteError, SetupError
from tapml_targets.library import CodeModule, Kernel
from tapml_targets.metal import driver, simulated
from tests.targets.metal import stand_in

pytest.importorskip("ziglang", reason="ziglang is not installed: no simulated Metal")

OVERRUN = """\
#include <metal_stdlib>
using namespace metal;
kernel void overrun(device int* o [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  o[i * 4] = 1;
}
"""


@pytest.fixture
def simulator() -> Iterator[Any]:
    (description,) = simulated.list_devices(0)
    opened = simulated.open_device(description)
    yield opened
    opened.close()


@pytest.fixture
def metal(simulator: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = stand_in.metal(simulator)
    monkeypatch.setattr(driver, "import_metal", lambda: module)
    return module


@pytest.fixture
def opened(metal: Any) -> Iterator[driver.MetalDriver]:
    made = driver.open_device(driver.list_devices()[0])
    assert isinstance(made, driver.MetalDriver)
    yield made
    made.close()


def device_of(metal: Any) -> stand_in.Device:
    (device,) = metal.MTLCopyAllDevices()
    assert isinstance(device, stand_in.Device)
    return device


def test_an_apple_gpu_is_listed_before_the_simulated_one_with_what_it_states(metal: Any) -> None:
    real, other = driver.list_devices()
    assert (real.name, real.device_type, real.index) == ("Apple M1", "gpu", 0)
    assert (other.device_type, other.index) == ("simulated", 1)
    limits = real.limits
    assert (limits.architecture, limits.subgroup_widths) == ("apple7", (32, 32))
    assert (limits.max_threads_per_block, limits.max_shared_memory_bytes) == (1024, 32768)
    assert (limits.max_buffer_bytes, limits.max_storage_buffers) == (1 << 30, 30)


def test_an_older_gpu_has_no_shuffles_and_another_makers_no_family(
    simulator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for family, architecture in ((4, "apple4"), (0, "")):
        module = stand_in.metal(simulator, family=family)
        monkeypatch.setattr(driver, "import_metal", lambda given=module: given)
        limits = driver.list_devices()[0].limits
        assert (limits.architecture, "subgroups" in limits.features) == (architecture, False)


def test_it_conforms(opened: driver.MetalDriver) -> None:
    """All that every driver does, but for what only takes long: many rounds, large memory."""

    def again(description: DeviceDescription) -> Any:
        return driver.open_device(description)

    long = {"rounds without growth", "large transfers", "large fills", "grids above 65535"}
    from tapml_targets.conformance.running import CASES

    results = run_cases(Bench(opened, again), [name for name in CASES if name not in long])
    assert [(r.case, r.reason) for r in results if r.status == "fail"] == []
    assert sum(r.status == "pass" for r in results) >= 14


def test_safe_mathematics_are_asked_for_unless_a_module_wants_fast_ones(
    metal: Any, opened: driver.MetalDriver
) -> None:
    (module,), kernels = built("metal", ADD)
    opened.load(module, list(kernels.values()))
    fast = CodeModule(module.dialect, module.code, options=("fast-math",))
    opened.load(fast, list(kernels.values()))
    assert device_of(metal).modes[-2:] == [metal.MTLMathModeSafe, metal.MTLMathModeFast]


def test_before_macos_15_fast_mathematics_are_switched_off_by_their_older_name(
    simulator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = stand_in.metal(simulator, older=True)
    monkeypatch.setattr(driver, "import_metal", lambda: module)
    made = driver.open_device(driver.list_devices()[0])
    (code,), kernels = built("metal", ADD)
    made.load(code, list(kernels.values()))
    assert device_of(module).modes == [0]


def test_a_write_behind_a_launch_does_not_reach_it(opened: driver.MetalDriver) -> None:
    """The processor sees the same memory: a plain copy would change what the GPU still reads."""
    (module,), kernels = built("metal", BITS)
    kernel = opened.load(module, list(kernels.values()))["bits"]
    bench = Bench(opened, driver.open_device)
    given, made = bench.put(np.arange(4, dtype="u4").tobytes()), opened.allocate(16)
    opened.launch_all(opened.bind([bench.bound(BITS, kernel, [(made, 0), (given, 0)], 4)]))
    opened.write(given, 0, memoryview(bytes(16)))
    assert np.frombuffer(opened.read(made, 0, 16), "u4").tolist() == [0, 1, 2, 3]
    assert bytes(opened.read(given, 0, 16)) == bytes(16)


@pytest.mark.parametrize(
    ("code", "kind"), [(3, RemoteError), (11, DeviceLostError), (4, DeviceLostError)]
)
def test_a_command_that_fails_is_told_when_it_is_waited_for(
    metal: Any, opened: driver.MetalDriver, code: int, kind: type[RemoteError]
) -> None:
    device_of(metal).fault_code = code
    kernel = opened.load(CodeModule("msl", OVERRUN.encode()), [Kernel("overrun", "overrun", 0)])
    made = opened.allocate(64)
    launch = BoundLaunch(kernel["overrun"], (BufferUse(made, 0, 64),), (1, 1, 1), (8, 1, 1))
    opened.launch_all(opened.bind([launch]))
    with pytest.raises(RemoteError, match="'overrun'") as caught:
        opened.finish()
    assert type(caught.value) is kind
    opened.finish()  # told once


def test_a_freed_buffer_of_a_prepared_sequence_is_refused(opened: driver.MetalDriver) -> None:
    (module,), kernels = built("metal", BITS)
    kernel = opened.load(module, list(kernels.values()))["bits"]
    bench = Bench(opened, driver.open_device)
    given, made = opened.allocate(16), opened.allocate(16)
    sequence = opened.bind([bench.bound(BITS, kernel, [(made, 0), (given, 0)], 4)])
    opened.free(given)
    with pytest.raises(InputError, match="freed"):
        opened.launch_all(sequence)


def test_a_kernel_that_is_not_there_is_named(opened: driver.MetalDriver) -> None:
    with pytest.raises(CompileError, match="no kernel 'missing'"):
        opened.load(CodeModule("msl", OVERRUN.encode()), [Kernel("missing", "missing", 0)])


def test_the_stand_in_refuses_what_the_binding_does_not_list(metal: Any) -> None:
    device = device_of(metal)
    with pytest.raises(AttributeError, match="newBufferWithSize:"):
        device.newBufferWithSize_(4)
    with pytest.raises(TypeError, match="takes 2 arguments, got 1"):
        device.newBufferWithLength_options_(4)
    with pytest.raises(ValueError, match="argument 0 is -1, not Q"):
        device.newBufferWithLength_options_(-1, 0)


def test_without_a_mac_and_a_compiler_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "list_devices", lambda index: [])
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setitem(sys.modules, "Metal", None)
    with pytest.raises(SetupError, match=r"Macs, and this is none .*\[simulator\]"):
        driver.list_devices()
