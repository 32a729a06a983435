"""WGSL passes values on by shuffles where the device has one width of subgroups."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from tapml.compiler.compiler import Compiler
from tapml.package.in_process import open_in_process
from tapml.replaying.replayer import replay_operator
from tapml.replaying.results import OperatorVerdict
from tapml_targets.library import Library
from tapml_targets.limits import Limits
from tapml_targets.target import Target
from tapml_targets.webgpu.description import subgroup_widths
from tests.conftest import RequireDevice
from tests.hazards.carving import carved
from tests.hazards.modules import Norm

EXCHANGED = 32
"""The width of subgroups for which TVM writes shuffles."""
_STEP = r"(\s*)t0\[0i\] = subgroupShuffleDown\(red_buf0\[0i\], u32\((?:16|8)i\)\);[^;]*;"
_LAST = r"(\s*)(t0_1\[0i\] = subgroupShuffleDown\(red_buf0_1\[0i\], u32\()1i(\)\);[^;]*;)"


def with_width(limits: Limits, width: int) -> Limits:
    return replace(limits, subgroup_widths=(width, width))


def for_eight(text: str) -> str:
    """A sum over 64 threads in subgroups of 32, for subgroups of 8: llvmpipe's, by 256 bits."""
    text = re.sub(_STEP, "", text)
    text = re.sub(_LAST, r"\1\g<2>4i\3\1\g<2>2i\3\1\g<2>1i\3", text)
    for wide, narrow in (
        ("% 32i", "% 8i"), (">>5u", ">>3u"), ("staging : array<f32, 2>", "staging : array<f32, 8>"),
        ("(i32(threadIdx.x) < 2i)", "(i32(threadIdx.x) < 8i)"),
    ):  # fmt: skip
        assert wide in text
        text = text.replace(wide, narrow)
    return text


@pytest.mark.parametrize(
    ("info", "widths"),
    [
        ({"stackgroup_min_size": 32, "stackgroup_max_size": 32}, (32, 32)),
        ({"subgroup_min_size": 64, "subgroup_max_size": 64}, (64, 64)),
        ({"stackgroup_min_size": 4, "stackgroup_max_size": 128}, (0, 0)),
        ({}, (0, 0)),
    ],
)
def test_a_width_is_known_where_an_adapter_states_one(
    info: dict[str, int], widths: tuple[int, int]
) -> None:
    assert subgroup_widths(info) == widths


def test_a_row_is_summed_by_shuffles_where_subgroups_have_the_width_or_through_memory(
    require_device: RequireDevice, tmp_path_factory: pytest.TempPathFactory
) -> None:
    devices = (each for each in require_device("webgpu") if "256 bits" in each.name)
    device = next(devices, None)
    if device is None:
        pytest.skip("no WebGPU device here has subgroups of 8: llvmpipe of 256 bits has")
    rows = np.random.default_rng(8).standard_normal((3, 200)).astype(np.float32)
    with (
        Compiler(tmp_path_factory.mktemp("libraries"), workers=1) as compiler,
        carved(Norm(), rows) as kept,
        open_in_process(device) as session,
    ):
        (operator,) = kept.plan.operators.values()

        def compiled(width: int) -> Library:
            limits = with_width(device.limits, width)
            return compiler.compile(operator, Target("webgpu", (), limits))

        def replayed(library: Library) -> OperatorVerdict:
            return replay_operator(operator, kept.tests, library, session, kept.oracle, kept.policy)

        for width in (0, EXCHANGED // 2):
            through_memory = compiled(width)
            (kernel,) = through_memory.kernels.values()
            assert (kernel.features, kernel.subgroup_width) == ((), 0)
            assert "subgroup" not in through_memory.modules[0].code.decode()
        assert replayed(through_memory).status == "pass"

        by_shuffles = compiled(EXCHANGED)
        (kernel,) = by_shuffles.kernels.values()
        assert (kernel.features, kernel.subgroup_width) == (("subgroups",), EXCHANGED)
        refused = replayed(by_shuffles)
        assert refused.status == "fail"
        assert f"needs subgroup_widths {EXCHANGED}, which" in refused.reason

        (module,) = by_shuffles.modules
        narrow = replace(module, code=for_eight(module.code.decode()).encode())
        of_any = {kernel.name: structs.replace(kernel, subgroup_width=0)}
        verdict = replayed(replace(by_shuffles, modules=(narrow,), kernels=of_any))
        assert verdict.status == "pass", verdict.reason
        assert replayed(replace(by_shuffles, kernels=of_any)).status == "fail"
