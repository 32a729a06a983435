"""Hazards of sections IV-D and IV-E of the TapML paper on the platforms that have them.

Modules are carved on the CPU. Their kernels, in the platform's own language, run in this process:
Metal's and ROCm's on the simulator, Vulkan's on its driver. `exhaustive/` diagnoses them further.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tapml.compiler.compiler import Compiler
from tapml.compiler.reference import compile_reference
from tapml.diagnosis.diagnose import diagnose
from tapml.failures.build_log import messages_of
from tapml.failures.diagnosis import Diagnosis
from tapml.package.in_process import InProcessTransport, open_in_process
from tapml.replaying.failure import Failure
from tapml.replaying.pace import Pace, Pacer
from tapml.replaying.replayer import replay_operator
from tapml.verdicts.verdict import Cause
from tapml_rpc.session import Session
from tapml_targets.conformance.bench import Bench
from tapml_targets.conformance.running import run_cases
from tapml_targets.driver import DeviceDescription
from tapml_targets.metal import simulated
from tapml_targets.metal.driver import MetalDriver, list_devices, open_device
from tapml_targets.target import Target
from tests.api.modules import line_of
from tests.conftest import RequireDevice
from tests.hazards.carving import (
    FAST_MATH,
    Array,
    Carved,
    Platform,
    carved,
    platform,
    unchanged,
)
from tests.hazards.kernel_faults import (
    glsl_shared_memory_of_two_types,
    hip_waves_of_64,
    msl_bytes_converted_as_words,
    msl_unaligned_tail_unchecked,
    msl_waves_of_16,
    msl_without_select,
)
from tests.hazards.modules import (
    ODD_WIDTH,
    WIDTH,
    GeluPerceptron,
    Norm,
    Pick,
    QuantizedKeys,
)
from tests.targets.metal import stand_in

SECONDS = 60


def normal(*shape: int, dtype: str = "float32") -> Array:
    drawn: Array = np.random.default_rng(8).standard_normal(shape).astype(dtype)
    return drawn


@pytest.fixture(scope="module")
def metal(require_device: RequireDevice) -> DeviceDescription:
    return require_device("metal", vendor="simulated")[0]


@pytest.fixture(scope="module")
def perceptron() -> Iterator[Carved]:
    """Phi-2's MLP, of whose tokens one drives one neuron beyond 45."""
    module = GeluPerceptron().eval()
    hidden = 0.1 * normal(5, WIDTH)
    hidden[2] = 14 * module.fc1.weight[7].detach().numpy()
    with carved(module, hidden) as kept:
        yield kept


@pytest.fixture(scope="module")
def norm() -> Iterator[Carved]:
    with carved(Norm(), normal(3, ODD_WIDTH)) as kept:
        yield kept


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetalDriver]:
    """A Mac whose last command buffer still runs when it says that it has ended."""
    (description,) = simulated.list_devices(0)
    driver = simulated.open_device(description)
    module = stand_in.metal(driver)
    monkeypatch.setattr("tapml_targets.metal.driver.import_metal", lambda: module)

    def wait(buffer: stand_in.CommandBuffer) -> None:
        *ended, last = buffer.device.committed or [buffer]
        for each in ended:
            each.complete()
        buffer.device.committed[:] = [last]
        buffer.state = 4

    monkeypatch.setattr(stand_in.CommandBuffer, "on_waitUntilCompleted", wait)
    opened = open_device(list_devices()[0])
    assert isinstance(opened, MetalDriver)
    yield opened
    driver.close()


def found_on(on: Platform, failure: Failure) -> Diagnosis:
    return diagnose(failure, on.session, compile=on.compile, budget_seconds=SECONDS)


def step_of(diagnosis: Diagnosis) -> str:
    assert diagnosis.step is not None
    return diagnosis.step.name


def test_metals_fast_tanh_is_nan_beyond_45(
    perceptron: Carved, metal: DeviceDescription, compiler: Compiler
) -> None:
    """Section IV-E, and nothing is planted: a module that asks for fast math gets that tanh."""
    with platform(metal, compiler, unchanged, FAST_MATH, open_in_process) as on:
        failure = perceptron.failure(on)
        found = found_on(on, failure)
    assert failure.operator.name == "fused_matmul_transposed_add_gelu_tanh"
    assert step_of(found) == "gelu_tanh.tanh"
    assert found.nonfinite is not None
    assert (found.nonfinite.hazard, found.nonfinite.index) == ("tanh overflow", (2, 7))
    assert found.attribution is not None
    assert found.attribution.cause == "math"
    with platform(metal, compiler, opened=open_in_process) as on:
        assert {verdict.status for verdict, _ in perceptron.replay(on).values()} == {"pass"}


def test_bytes_that_go_through_a_word_are_metals_conversion_of_the_keys(
    metal: DeviceDescription, compiler: Compiler
) -> None:
    """Section IV-D: uint8x4 to uint32 to halfx4."""
    codes = np.random.default_rng(8).integers(0, 256, (6, WIDTH)).astype(np.uint8)
    scale = np.full((6, 1), 0.01, np.float16)
    with (
        carved(QuantizedKeys(), normal(4, WIDTH, dtype="float16"), codes, scale) as kept,
        platform(metal, compiler, msl_bytes_converted_as_words, opened=open_in_process) as on,
    ):
        failure = kept.failure(on)
        found = found_on(on, failure)
    assert failure.operator.name == "fused_cast_subtract_multiply"
    assert step_of(found) == "cast"
    line = f"tests/hazards/modules.py:{line_of(QuantizedKeys, 'codes.to(query.dtype)')}"
    assert line in [origin.source for origin in failure.origins]


def test_metals_unchecked_tail_reads_what_lies_behind_a_row(
    norm: Carved, metal: DeviceDescription, compiler: Compiler
) -> None:
    with platform(metal, compiler, msl_unaligned_tail_unchecked, opened=open_in_process) as on:
        failure = norm.failure(on)
        found = found_on(on, failure)
    assert failure.result.verdict.cause == Cause.READ_OUTSIDE
    assert step_of(found).startswith("mean")


def test_a_product_that_needs_a_missing_select_is_named_with_the_line(
    perceptron: Carved, metal: DeviceDescription, compiler: Compiler
) -> None:
    """Section IV-D: a matrix multiplication does not compile."""
    with platform(metal, compiler, msl_without_select, opened=open_in_process) as on:
        verdicts = perceptron.replay(on)
    for verdict, library in verdicts.values():
        assert verdict.cause == Cause.UNBUILT
        (module,) = library.modules
        first, *_ = messages_of(verdict.reason, module.dialect)
        assert "simd_select" in first.text
        assert "simd_select" in module.code.decode().splitlines()[first.line - 1]


def test_waves_of_half_their_width_sum_half_a_row(
    norm: Carved, metal: DeviceDescription, compiler: Compiler
) -> None:
    with platform(metal, compiler, msl_waves_of_16, opened=open_in_process) as on:
        found = found_on(on, norm.failure(on))
    assert step_of(found).startswith("mean")


def test_a_sum_over_waves_of_64_is_right_on_one_amd_gpu_and_wrong_on_another(
    require_device: RequireDevice, compiler: Compiler
) -> None:
    by_width = {
        each.limits.subgroup_widths[0]: each for each in require_device("rocm", vendor="simulated")
    }
    with carved(Norm(), normal(3, 200)) as kept:
        with platform(by_width[64], compiler, hip_waves_of_64, opened=open_in_process) as on:
            assert [verdict.status for verdict, _ in kept.replay(on).values()] == ["pass"]
        with platform(by_width[32], compiler, hip_waves_of_64, opened=open_in_process) as on:
            found = found_on(on, kept.failure(on))
    assert step_of(found).startswith("mean")


def test_shared_memory_of_two_types_is_no_vulkan_kernel(
    require_device: RequireDevice, compiler: Compiler
) -> None:
    """Section IV-D: CUDA's reuse of shared memory is not permitted by Vulkan's design."""
    device = require_device("vulkan")[0]
    with (
        carved(Pick(), normal(3, 100)) as kept,
        platform(device, compiler, glsl_shared_memory_of_two_types) as on,
    ):
        ((operator, (verdict, library)),) = kept.replay(on).items()
    assert operator == "argmax"
    assert verdict.cause == Cause.UNBUILT
    (module,) = library.modules
    first, *_ = messages_of(verdict.reason, module.dialect)
    assert "cannot convert" in first.text
    assert "red_buf1_0" in module.code.decode().splitlines()[first.line - 1]


def test_work_that_is_read_before_it_is_done_is_the_drivers(
    hasty: MetalDriver, metal: DeviceDescription, norm: Carved, compiler: Compiler
) -> None:
    """Section IV-D: what Safari's onSubmittedWorkDone did not wait for was read unready."""
    (operator,) = norm.plan.operators.values()
    library = compiler.compile(operator, Target("metal", (), metal.limits))
    with Session(InProcessTransport(hasty)) as session:
        verdict = replay_operator(operator, norm.tests, library, session, norm.oracle, norm.policy)
    assert verdict.cause == Cause.NONDETERMINISM, verdict.reason
    (result,) = run_cases(Bench(hasty, open_device), ["work is done before it is read"])
    assert result.status == "fail"


def test_sums_without_the_shuffles_of_the_gpu_are_called_slow_and_vanilla(
    norm: Carved, metal: DeviceDescription, compiler: Compiler
) -> None:
    """Section IV-D: a code generator that had no simd_shuffle used vanilla instructions."""
    plain = metal.limits.features - {"subgroups"}
    (operator,) = norm.plan.operators.values()
    libraries = [
        compiler.compile(operator, Target("metal", (), limits))
        for limits in (metal.limits, replace(metal.limits, features=plain))
    ]
    with open_in_process(metal) as session:
        pacer = Pacer(Pace(0.001, "bandwidth"), session, lambda: compile_reference(norm.plan))
        own, without = (
            pacer.judged(
                operator,
                library,
                replay_operator(operator, norm.tests, library, session, norm.oracle, norm.policy),
            )
            for library in libraries
        )
    assert own.cause == without.cause == Cause.TOO_SLOW
    assert "GB/s; --max-slowdown allows 0.001 times" in own.reason
    assert "shared memory alone" not in own.reason
    assert "exchange values through shared memory alone, with " in without.reason
