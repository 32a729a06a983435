"""The driver of AMD's GPUs, over stand-ins of AMD's bindings that run kernels on the simulator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tapml_targets.conformance.bench import Bench
from tapml_targets.conformance.running import CASES, run_cases
from tapml_targets.conformance_kernels import ADD, BITS, built
from tapml_targets.driver import BoundLaunch, BufferUse, ScalarUse
from tapml_targets.errors import CompileError, DeviceLostError, InputError, SetupError
from tapml_targets.library import CodeModule, Kernel
from tapml_targets.rocm import binding, description, driver, gpu, programs
from tapml_targets.rocm.code_object import argument_sizes
from tests.targets.binding_stubs import installed_stubs, what_it_adds
from tests.targets.gpu_machine import Machine
from tests.targets.rocm import stand_in
from tests.targets.unkept_code import UnkeptCode

pytest.importorskip("ziglang", reason="ziglang is not installed: no simulated ROCm")

RECORDED = json.loads((Path(__file__).parent / "binding.json").read_text("utf-8"))
# They only take long.
LONG = {"rounds without growth", "large transfers", "large fills", "grids above 65535"}
OVERRUN = 'extern "C" __global__ void overrun(int* o) { o[threadIdx.x * 4] = 1; }\n'


@pytest.fixture
def machine() -> Iterator[Machine]:
    wide = next(each for each in driver._simulated(0) if each.limits.subgroup_widths == (64, 64))
    opened = driver.open_device(wide)
    yield Machine(opened)
    opened.close()


@pytest.fixture
def opened(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[gpu.RocmDriver]:
    hip, hiprtc = stand_in.bindings(machine)
    modules = {"hip": hip, "hiprtc": hiprtc}
    for each in (gpu, description, programs):
        monkeypatch.setattr(each, "import_binding", modules.__getitem__)
    monkeypatch.setattr(programs, "KeptCode", UnkeptCode)
    made = driver.open_device(driver.list_devices()[0])
    assert isinstance(made, gpu.RocmDriver)
    yield made
    made.close()


def test_a_gpu_is_listed_before_the_simulated_ones(opened: gpu.RocmDriver) -> None:
    real, *others = driver.list_devices()
    assert (real.name, real.index, real.driver_version) == ("AMD Instinct MI210", 0, "HIP 7.15.1")
    assert (real.limits.architecture, real.limits.subgroup_widths) == ("gfx90a", (64, 64))
    assert [(each.index, each.device_type) for each in others] == [
        (1, "simulated"), (2, "simulated"),
    ]  # fmt: skip


def test_it_conforms(opened: gpu.RocmDriver, machine: Machine) -> None:
    results = run_cases(
        Bench(opened, driver.open_device), [name for name in CASES if name not in LONG]
    )
    assert [(r.case, r.reason) for r in results if r.status == "fail"] == []
    assert sum(r.status == "pass" for r in results) >= 14
    assert machine.replays, "no sequence became a graph"


def test_what_a_kernel_does_wrong_is_told_once_as_a_lost_device(opened: gpu.RocmDriver) -> None:
    kernel = opened.load(CodeModule("hip-c", OVERRUN.encode()), [Kernel("overrun", "overrun", 0)])
    made = opened.allocate(64)
    launch = BoundLaunch(kernel["overrun"], (BufferUse(made, 0, 64),), (1, 1, 1), (8, 1, 1))
    opened.launch_all(opened.bind([launch]))
    with pytest.raises(DeviceLostError, match="hipErrorIllegalAddress"):
        opened.finish()
    opened.finish()


def test_a_number_of_another_size_is_refused(opened: gpu.RocmDriver) -> None:
    (module,), kernels = built("rocm", ADD)
    add = opened.load(module, list(kernels.values()))["add"]
    made = BufferUse(opened.allocate(16), 0, 16)
    wrong = (made, made, ScalarUse(1, "int64"), ScalarUse(1, "int32"))
    with pytest.raises(InputError, match="argument 2 has 4 bytes, got int64"):
        opened.launch(add, wrong, (1, 1, 1), (4, 1, 1))


def test_a_freed_buffer_of_a_prepared_sequence_is_refused(opened: gpu.RocmDriver) -> None:
    (module,), kernels = built("rocm", BITS)
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


def test_a_kernel_that_is_not_there_is_named(opened: gpu.RocmDriver) -> None:
    with pytest.raises(CompileError, match="no kernel 'missing'"):
        opened.load(CodeModule("hip-c", OVERRUN.encode()), [Kernel("missing", "missing", 0)])


def test_code_that_says_nothing_of_arguments_is_left_to_the_loader() -> None:
    for code in (b"", b"text", b"\x7fELF", b"\x7fELF" + b"\xff" * 200):
        assert argument_sizes(code) == {}


def test_without_rocm_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rocm.bindings.hip", None)
    with pytest.raises(SetupError, match=r"rocm-bindings-hip .*\[rocm\]"):
        binding.import_binding("hip")


def test_the_stand_ins_have_only_what_the_bindings_have(machine: Machine) -> None:
    hip, hiprtc = stand_in.bindings(machine)
    assert what_it_adds(hip, RECORDED["hip"]) == []
    assert what_it_adds(hiprtc, RECORDED["hiprtc"]) == []
    assert RECORDED["hipError_t"].items() >= {e.name: "property" for e in stand_in.Status}.items()


def test_what_is_recorded_is_what_the_installed_bindings_have() -> None:
    found = installed_stubs("rocm-bindings-hip", ["bindings/hip.pyi", "bindings/hiprtc.pyi"])
    for owner in ("hip", "hiprtc", "hipError_t"):
        assert found[owner].items() >= RECORDED[owner].items(), owner
