"""Real kernels that are wrong for a known reason, and the cause that is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tapml.compiler.cache import LibraryCache, library_key
from tapml.compiler.compiler import Compiler, operator_source
from tapml.diagnosis.attribution import attribute
from tapml.diagnosis.variants import second_driver
from tapml.failures.diagnosis import Attribution
from tapml.replaying.failure import Failure
from tapml_targets.driver import DeviceDescription
from tapml_targets.library import CodeModule, Library
from tapml_targets.library_format import pack
from tapml_targets.target import Target
from tests.api.modules import WIDTH as SAMPLER_WIDTH
from tests.api.modules import NucleusSampler
from tests.hazards.carving import (
    FAST_MATH,
    Array,
    Carved,
    FaultyCompiler,
    KernelFault,
    Platform,
    carved,
    platform,
    unchanged,
)
from tests.hazards.kernel_faults import edited, tanh_unstable, unaligned_tail_unchecked
from tests.hazards.modules import ODD_WIDTH, WIDTH, GeluPerceptron, Norm


def rows(count: int, width: int) -> Array:
    drawn: Array = np.random.default_rng(2).standard_normal((count, width)).astype(np.float32)
    return drawn


@pytest.fixture(scope="module")
def sampler() -> Iterator[Carved]:
    with carved(NucleusSampler().eval(), rows(4, SAMPLER_WIDTH)) as kept:
        yield kept


@pytest.fixture(scope="module")
def norm() -> Iterator[Carved]:
    with carved(Norm(), rows(3, ODD_WIDTH)) as kept:
        yield kept


def attributed(
    failure: Failure, on: Platform, *, second: bool = True, budget_seconds: float = 120
) -> Attribution:
    return attribute(
        failure,
        on.session,
        compile=on.compile,
        second=second_driver(on.session) if second else None,
        budget_seconds=budget_seconds,
    )


def gave(found: Attribution, variant: str) -> str:
    """What the variant whose name holds `variant` gave."""
    (text,) = (text for name, text in found.evidence if variant in name)
    return text


def test_tvms_wrong_running_sum_is_its_schedule(
    sampler: Carved,
    pocl: DeviceDescription,
    intel: DeviceDescription,
    compiler: Compiler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TVM's own kernel takes threads in lockstep for granted, and PoCL has none."""
    monkeypatch.setattr("tapml.compiler.compiler.function_kind", lambda name: "gpu")
    with platform(pocl, compiler) as on:
        failure = sampler.failure(on)
        assert failure.operator.name == "gpu_2d_continuous_cumsum"
        found = attributed(failure, on)
    assert found.cause == "schedule"
    assert "breaks the rules of the platform" in found.sentence
    assert gave(found, "checks every access").startswith("data race at line")
    assert gave(found, "recompiled") == "the same kernel, byte for byte"
    assert gave(found, "precise math").startswith("fail")
    assert gave(found, "Intel").startswith("pass")
    assert gave(found, "on one thread").startswith("pass")


def test_a_driver_s_own_fast_math_is_math(
    sampler: Carved, intel: DeviceDescription, compiler: Compiler
) -> None:
    """Nothing is planted: Intel's exp under -cl-fast-relaxed-math is a thousand times worse."""
    with platform(intel, compiler, options=FAST_MATH) as on:
        failure = sampler.failure(on)
        assert failure.operator.name == "softmax"
        found = attributed(failure, on)
    assert found.cause == "math"
    assert "without the option fast_math" in found.sentence
    assert gave(found, "without fast_math").startswith("pass")
    assert len(found.evidence) == 4, "what was told already was tried no further"


def half_counted(library: Library, options: Mapping[str, str]) -> Library:
    """A slip of the hand."""
    return edited(library, r"_rf_local_ptr\[0\] \+ ", "_rf_local_ptr[0] + 0.5f * ", "")


def test_an_edited_kernel_is_wrong_by_its_text(
    norm: Carved, pocl: DeviceDescription, compiler: Compiler
) -> None:
    with platform(pocl, compiler, half_counted) as by_hand:
        failure = norm.failure(by_hand)
        found = attributed(failure, Platform(by_hand.session, FaultyCompiler(compiler, unchanged)))
    assert found.cause == "kernel text"
    assert gave(found, "recompiled").startswith("pass")
    assert len(found.evidence) == 2


def test_a_kernel_left_over_in_the_cache_is_found_out(
    norm: Carved, pocl: DeviceDescription, tmp_path: Path
) -> None:
    target = Target(pocl.platform, limits=pocl.limits)
    (operator,) = norm.plan.operators.values()
    with Compiler(tmp_path, workers=1) as own, platform(pocl, own) as on:
        wrong = half_counted(on.compile(operator, {}), {})
        key = library_key(operator_source(operator, target), target)
        LibraryCache(tmp_path).put(key, pack(wrong))
        failure = norm.failure(on)
        assert failure.library == wrong
        assert attributed(failure, on).cause == "kernel text"


def mistaken_where(condition: str) -> KernelFault:
    """A driver that takes square roots wrongly, however they are scheduled."""
    prologue = f"""
#if {condition}
#define platform_sqrt(x) (1.001f * sqrt(x))
#else
#define platform_sqrt(x) sqrt(x)
#endif
"""

    def mistaken(library: Library, options: Mapping[str, str]) -> Library:
        return edited(library, r"\bsqrt\(", "platform_sqrt(", prologue)

    return mistaken


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("defined(POCL_DEVICE_ADDRESS_BITS)", "wrong on this one under every schedule"),
        ("defined(POCL_DEVICE_ADDRESS_BITS) && defined(__OPTIMIZE__)", "once its optimiser leaves"),
    ],
)
def test_what_one_driver_makes_of_the_same_text_is_the_driver(
    norm: Carved,
    pocl: DeviceDescription,
    intel: DeviceDescription,
    compiler: Compiler,
    condition: str,
    words: str,
) -> None:
    with platform(pocl, compiler, mistaken_where(condition)) as on:
        found = attributed(norm.failure(on), on)
    assert found.cause == "driver"
    assert words in found.sentence
    assert gave(found, "Intel").startswith("pass")


def wrong_where_fused(library: Library, options: Mapping[str, str]) -> Library:
    """What comes after a mean in the same kernel takes the wrong constant."""
    if not any(name.startswith("fused") for name in library.operators):
        return library
    return edited(library, r"/ 5\.0+e\+01f", "/ 49.0f", "")


def test_what_is_right_step_by_step_only_is_fusion(
    norm: Carved, pocl: DeviceDescription, compiler: Compiler
) -> None:
    with platform(pocl, compiler, wrong_where_fused) as on:
        found = attributed(norm.failure(on), on, second=False)
    assert found.cause == "fusion"
    assert gave(found, "step after step").startswith("pass")
    assert gave(found, "plainest schedule").startswith("fail")


def test_what_is_wrong_in_every_form_is_the_code_generator(
    pocl: DeviceDescription, intel: DeviceDescription, compiler: Compiler
) -> None:
    module = GeluPerceptron().eval()
    hidden = 0.1 * rows(5, WIDTH)
    hidden[2] = 14 * module.fc1.weight[7].detach().numpy()
    with carved(module, hidden) as kept, platform(pocl, compiler, tanh_unstable) as on:
        found = attributed(kept.failure(on), on)
    assert found.cause == "code generator"
    assert "on two drivers" in found.sentence
    assert sum(text.startswith("fail") for _, text in found.evidence) == 7


def test_without_a_second_driver_the_schedule_is_still_told(
    norm: Carved, pocl: DeviceDescription, compiler: Compiler
) -> None:
    with platform(pocl, compiler, unaligned_tail_unchecked) as on:
        found = attributed(norm.failure(on), on, second=False)
    assert found.cause == "schedule"
    assert gave(found, "second driver") == "this machine has none"


@pytest.fixture
def tail(
    norm: Carved, pocl: DeviceDescription, compiler: Compiler
) -> Iterator[tuple[Failure, Platform]]:
    with platform(pocl, compiler, unaligned_tail_unchecked) as on:
        yield norm.failure(on), on


def test_what_does_not_fail_again_has_no_cause(
    tail: tuple[Failure, Platform], compiler: Compiler
) -> None:
    failure, on = tail
    right = compiler.compile(failure.operator, Target("opencl", limits=failure.device.limits))
    found = attributed(replace(failure, library=right), on)
    assert found.cause == "unknown"
    assert "did not fail again" in found.sentence
    assert found.evidence[0][1].startswith("pass in 8 of 8 replays")
    assert gave(found, "checks every access") == "it finds no fault"


def test_what_was_not_tried_in_time_is_said(tail: tuple[Failure, Platform]) -> None:
    failure, on = tail
    found = attributed(failure, on, budget_seconds=-1)
    assert found.cause == "unknown"
    assert "not tried: the -1 s" in found.evidence[0][1]


def test_a_kernel_that_does_not_build_has_no_cause(tail: tuple[Failure, Platform]) -> None:
    failure, on = tail
    broken = replace(failure.library, modules=(CodeModule("opencl-c", b"__kernel void k( {"),))
    found = attributed(replace(failure, library=broken), on)
    assert found.cause == "unknown"
    assert "could not be replayed" in found.sentence


def test_a_second_driver_is_another_one(
    pocl: DeviceDescription, intel: DeviceDescription, compiler: Compiler
) -> None:
    with platform(pocl, compiler) as on:
        another = second_driver(on.session)
    assert another is not None
    with another() as session:
        assert session.device.vendor_platform != pocl.vendor_platform
        assert session.device.device_type != "checker"
