"""Hazards of sections II-B, IV-D and IV-E of the paper, from carved runs to operator and cause.

Each platform has one fault. The module is right on the CPU, where it is carved; on the platform one
operator must be named, and what is wrong inside it, where, and why.
"""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from tapml.compiler.compiler import Compiler
from tapml.diagnosis.diagnose import diagnose
from tapml.diagnosis.variants import second_driver
from tapml.failures.diagnosis import Diagnosis
from tapml.oracles.probing import is_probe
from tapml.replaying.failure import Failure
from tapml.verdicts.verdict import Cause
from tapml_targets.driver import DeviceDescription
from tests.api.modules import line_of
from tests.conftest import RequireDevice
from tests.hazards.carving import FAST_MATH, Array, Platform, carved, platform
from tests.hazards.kernel_faults import (
    bytes_converted_as_words,
    coarse_half_subtraction,
    tanh_unstable,
    tanh_unstable_under_fast_math,
    unaligned_tail_unchecked,
)
from tests.hazards.modules import (
    ODD_WIDTH,
    WIDTH,
    Drift,
    GeluPerceptron,
    Norm,
    QuantizedKeys,
)

NEURON = 7


def diagnosed(failure: Failure, on: Platform) -> Diagnosis:
    return diagnose(
        failure,
        on.session,
        compile=on.compile,
        second=second_driver(on.session),
        budget_seconds=120,
    )


def normal(*shape: int, dtype: str = "float32") -> Array:
    drawn: Array = np.random.default_rng(8).standard_normal(shape).astype(dtype)
    return drawn


def activations(module: GeluPerceptron, *, hot: bool) -> Array:
    """Five tokens; where `hot`, one that drives one neuron to 14."""
    hidden = 0.1 * normal(5, WIDTH)
    if hot:
        hidden[2] = 14 * module.fc1.weight[NEURON].detach().numpy()
    return hidden


def assert_origin(failure: Failure, module: type[nn.Module], text: str) -> None:
    """The failing operator comes from the line of `module` that holds `text`."""
    line = f"tests/hazards/modules.py:{line_of(module, text)}"
    assert line in [origin.source for origin in failure.origins]


@pytest.mark.parametrize("vendor", ["Portable Computing Language", "Intel"])
def test_a_gelu_that_is_nan_beyond_45_is_the_platform_s_fast_tanh(
    require_device: RequireDevice, compiler: Compiler, vendor: str
) -> None:
    """Section IV-E: GELU, NaN for some prompts, mended by disabling fast math."""
    device = require_device("opencl", vendor=vendor)[0]
    module = GeluPerceptron().eval()
    with (
        carved(module, activations(module, hot=True)) as kept,
        platform(device, compiler, tanh_unstable_under_fast_math, FAST_MATH) as on,
    ):
        failure = kept.failure(on)
        found = diagnosed(failure, on)
    assert failure.operator.name == "fused_matmul_transposed_add_gelu_tanh"
    assert_origin(failure, GeluPerceptron, 'approximate="tanh"')
    assert found.nonfinite is not None
    assert found.nonfinite.hazard == "tanh overflow"
    assert found.nonfinite.index == (2, NEURON)
    assert found.nonfinite.argument > 44
    assert found.step is not None
    assert found.step.name == "gelu_tanh.tanh"
    assert found.attribution is not None
    assert found.attribution.cause == "math"


def test_a_cold_prompt_does_not_show_it_and_a_probe_does(
    pocl: DeviceDescription, compiler: Compiler
) -> None:
    """What no carved activation reaches, numbers beyond the exponential's range do."""
    module = GeluPerceptron().eval()
    with (
        carved(module, activations(module, hot=False)) as kept,
        platform(pocl, compiler, tanh_unstable) as on,
    ):
        failure = kept.failure(on)
    assert is_probe(failure.result.test)


def test_a_tanh_that_is_always_written_so_is_the_code_generator(
    pocl: DeviceDescription, intel: DeviceDescription, compiler: Compiler
) -> None:
    module = GeluPerceptron().eval()
    with (
        carved(module, activations(module, hot=True)) as kept,
        platform(pocl, compiler, tanh_unstable) as on,
    ):
        found = diagnosed(kept.failure(on), on)
    assert found.where == ("output_0: only element [2, 7] of [5, 20] is wrong",)
    assert found.attribution is not None
    assert found.attribution.cause == "code generator"


def test_1035_minus_1031_is_5_in_no_digit_probe(
    require_device: RequireDevice, compiler: Compiler
) -> None:
    """Section II-B: the carved test itself calls 5 honest, for 1035 +- half gives it as well."""
    device = require_device("opencl", vendor="Intel", dtype="float16")[0]
    now = np.full((4, WIDTH), 1035, np.float16)
    before = np.full((4, WIDTH), 1031, np.float16)
    with (
        carved(Drift(), now, before) as kept,
        platform(device, compiler, coarse_half_subtraction) as on,
    ):
        ((verdict, _),) = kept.replay(on).values()
        failure = kept.failure(on)
        found = diagnosed(failure, on)
    carved_test = verdict.results[0]
    assert carved_test.verdict.status == "pass"
    assert carved_test.verdict.worst_ratio > 1
    assert failure.operator.name == "fused_subtract_abs_multiply"
    assert failure.result.test.endswith("/probe-digits")
    assert_origin(failure, Drift, "(now - before)")
    (expected,) = failure.expectation.outputs
    off = failure.result.actual[0].astype(np.float64) - expected.values
    assert set(np.unique(np.abs(off))) == {0.25}, "one unit of the difference, damped"
    assert found.step is not None
    assert (found.step.name, found.step.position) == ("subtract", 1)
    assert found.attribution is not None
    assert found.attribution.cause == "code generator"


@pytest.mark.parametrize(
    ("vendor", "dtype"), [("Portable Computing Language", "float32"), ("Intel", "float16")]
)
def test_bytes_that_go_through_a_word_are_the_conversion_of_the_keys(
    require_device: RequireDevice, compiler: Compiler, vendor: str, dtype: str
) -> None:
    """Section IV-D: uint8x4 to uint32 to halfx4 in the kernel that dequantises."""
    device = require_device("opencl", vendor=vendor, dtype=dtype)[0]
    generator = np.random.default_rng(8)
    codes = generator.integers(0, 256, (6, WIDTH)).astype(np.uint8)
    scale = (generator.random((6, 1)) / 64 + 0.001).astype(dtype)
    with (
        carved(QuantizedKeys(), normal(4, WIDTH, dtype=dtype), codes, scale) as kept,
        platform(device, compiler, bytes_converted_as_words) as on,
    ):
        failure = kept.failure(on)
        found = diagnosed(failure, on)
    assert failure.operator.name == "fused_cast_subtract_multiply"
    assert_origin(failure, QuantizedKeys, "codes.to(query.dtype)")
    assert found.step is not None
    assert (found.step.name, found.step.position) == ("cast", 1)
    assert not any("stopped" in note for note in found.notes)
    assert found.attribution is not None
    assert found.attribution.cause == "code generator"


def test_a_tail_that_is_not_checked_is_the_schedule_that_cut_it(
    pocl: DeviceDescription, intel: DeviceDescription, compiler: Compiler
) -> None:
    """Section IV-D: no check for unaligned data, so unknown data is accessed."""
    with (
        carved(Norm(), normal(3, ODD_WIDTH)) as kept,
        platform(pocl, compiler, unaligned_tail_unchecked) as on,
    ):
        failure = kept.failure(on)
        found = diagnosed(failure, on)
    assert failure.operator.name == "fused_multiply_mean_add_rsqrt_multiply"
    assert_origin(failure, Norm, "torch.rsqrt")
    assert failure.result.verdict.cause == Cause.READ_OUTSIDE
    assert found.step is not None
    assert found.step.name.startswith("mean")
    assert found.attribution is not None
    assert found.attribution.cause == "schedule"
    assert "plainer schedule" in found.attribution.sentence
