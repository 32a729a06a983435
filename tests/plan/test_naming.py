"""Operator names."""

from __future__ import annotations

import pytest

from tapml.plan.naming import UniqueNames, readable


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NT_matmul4", "matmul_transposed"),
        ("fused_tir_sigmoid_multiply7_multiply7", "fused_silu_multiply"),
        ("fused_mean_add_tir_rsqrt_multiply2_multiply3", "fused_rms_norm"),
        ("conv2d1", "conv2d"),
        ("tir_log2", "log2"),
        ("fused_log1p1_exp", "fused_log1p_exp"),
        ("gpu_2d_continuous_cumsum", "gpu_2d_continuous_cumsum"),
        ("softmax", "softmax"),
    ],
)
def test_numbers_and_jargon_go(name: str, expected: str) -> None:
    assert readable(name) == expected


def test_long_names_are_cut_at_a_word() -> None:
    name = readable("fused_" + "_".join(f"subtract{index}" for index in range(20)))
    assert len(name) <= 60
    assert name.startswith("fused_subtract_subtract")
    assert name.endswith("_and_more")


def test_names_are_given_out_once() -> None:
    names = UniqueNames("_")
    assert [names.take("add") for _ in range(3)] == ["add", "add_2", "add_3"]
    values = UniqueNames(".")
    assert [values.take("mm", 1), values.take("mm.", 1), values.take("mm.", 1)] == [
        "mm",
        "mm.1",
        "mm.2",
    ]
