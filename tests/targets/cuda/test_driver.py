"""The driver of NVIDIA's GPUs, over a stand-in of cuda-core that runs kernels on the simulator."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tapml_targets.conformance.bench import Bench
from tapml_targets.conformance.running import CASES, run_cases
from tapml_targets.conformance_kernels import BITS, built
from tapml_targets.cuda import description, driver, gpu, programs
from tapml_targets.driver import BoundLaunch, BufferUse, DeviceDescription
from tapml_targets.errors import CompileError, DeviceLostError, InputError
from tapml_targets.library import CodeModule, Kernel
from tapml_targets.simulator.description import is_simulated
from tests.targets.binding_stubs import installed_stubs, what_it_adds
from tests.targets.cuda import stand_in
from tests.targets.gpu_machine import Machine
from tests.targets.unkept_code import UnkeptCode

pytest.importorskip("ziglang", reason="ziglang is not installed: no simulated CUDA")

RECORDED = json.loads((Path(__file__).parent / "binding.json").read_text("utf-8"))
# They only take long.
LONG = {"rounds without growth", "large transfers", "large fills", "grids above 65535"}
OVERRUN = 'extern "C" __global__ void overrun(int* o) { o[threadIdx.x * 4] = 1; }\n'


@pytest.fixture
def machine() -> Iterator[Machine]:
    from tapml_targets.simulator.description import simulated_device

    opened = driver.open_device(simulated_device("cuda", 0, "sm_80", driver._SIMULATED))
    yield Machine(opened)
    opened.close()


@pytest.fixture
def core(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = stand_in.core(machine)
    for owner, name in ((gpu, "import_core"), (description, "import_core"), (programs, "_core")):
        monkeypatch.setattr(owner, name, lambda: module)
    monkeypatch.setattr(description, "_driver_version", lambda: "CUDA 13.0")
    monkeypatch.setattr(programs, "KeptCode", UnkeptCode)
    return module


@pytest.fixture
def opened(core: Any) -> Iterator[gpu.CudaDriver]:
    made = driver.open_device(driver.list_devices()[0])
    assert isinstance(made, gpu.CudaDriver)
    yield made
    made.close()


def test_a_gpu_is_listed_before_the_simulated_one(core: Any) -> None:
    real, other = driver.list_devices()
    assert (real.name, real.limits.architecture, real.index) == ("NVIDIA H100", "sm_90", 0)
    assert is_simulated(other) and other.index == 1


def test_it_conforms(opened: gpu.CudaDriver, machine: Machine) -> None:
    def again(wanted: DeviceDescription) -> Any:
        return driver.open_device(wanted)

    results = run_cases(Bench(opened, again), [name for name in CASES if name not in LONG])
    assert [(r.case, r.reason) for r in results if r.status == "fail"] == []
    assert sum(r.status == "pass" for r in results) >= 14
    assert machine.replays, "no sequence became a graph"


def test_what_a_kernel_does_wrong_is_told_once_as_a_lost_device(opened: gpu.CudaDriver) -> None:
    kernel = opened.load(CodeModule("cuda-c", OVERRUN.encode()), [Kernel("overrun", "overrun", 0)])
    made = opened.allocate(64)
    launch = BoundLaunch(kernel["overrun"], (BufferUse(made, 0, 64),), (1, 1, 1), (8, 1, 1))
    opened.launch_all(opened.bind([launch]))
    with pytest.raises(DeviceLostError, match="ILLEGAL_ADDRESS"):
        opened.finish()
    opened.finish()


def test_a_freed_buffer_of_a_prepared_sequence_is_refused(opened: gpu.CudaDriver) -> None:
    (module,), kernels = built("cuda", BITS)
    kernel = opened.load(module, list(kernels.values()))["bits"]
    bench = Bench(opened, driver.open_device)
    given = bench.put(np.arange(4, dtype="u4").tobytes())
    made = opened.allocate(16)
    sequence = opened.bind([bench.bound(BITS, kernel, [(made, 0), (given, 0)], 4)] * 2)
    for _ in range(3):
        opened.launch_all(sequence)
    assert np.frombuffer(opened.read(made, 0, 16), "u4").tolist() == [0, 1, 2, 3]
    opened.free(given)
    with pytest.raises(InputError, match="freed"):
        opened.launch_all(sequence)


def test_a_kernel_that_is_not_there_is_named(opened: gpu.CudaDriver) -> None:
    with pytest.raises(CompileError, match="no kernel 'missing'"):
        opened.load(CodeModule("cuda-c", OVERRUN.encode()), [Kernel("missing", "missing", 0)])


def test_the_stand_in_has_only_what_cuda_core_has(core: Any) -> None:
    for name, each in vars(core).items():
        if inspect.isclass(each):
            assert what_it_adds(each, RECORDED[name]) == [], name
    properties = vars(core.Device.properties)
    assert RECORDED["DeviceProperties"].keys() >= properties.keys()
    assert RECORDED["LaunchConfig"]["__init__"].split(", ")[1:] >= ["grid"]
    assert RECORDED["_launcher"]["launch"] == "stream, config, kernel, *kernel_args"


def test_what_is_recorded_is_what_the_installed_package_has() -> None:
    found = installed_stubs("cuda-core", [f"core/cu13/{each}" for each in RECORDED["files"]])
    for owner in RECORDED.keys() - {"source", "files"}:
        assert found[owner].items() >= RECORDED[owner].items(), owner
