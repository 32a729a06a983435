"""A kernel's arguments are found in OpenCL C without a parser for all of C."""

from __future__ import annotations

import pytest

from tapml.kernels.opencl_signature import (
    OPENCL_OPTIONS,
    read_opencl_entries,
    read_opencl_signature,
)
from tapml_targets.library import Parameter
from tests.conftest import RequireDevice
from tests.kernels.operators import SCALE

SOURCE = """\
// __kernel void first(int commented) {}
#define OTHER \\
  __kernel void first(int defined) {}
__kernel void first(__global float* declared);
/* kernel void
   first(int a) {} */
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void first(
    __global const float4* restrict in, global half *out, const long n,
    unsigned int m, __local float* shared, image2d_t image, REAL* unknown, __constant uchar* c)
{ }
kernel void second(void) { char* text = "__kernel void third(int a) {"; }
"""


def test_arguments_have_kind_dtype_and_constness() -> None:
    signature = read_opencl_signature(SOURCE, "first")
    assert signature is not None
    assert signature.line == 8
    assert [(a.name, a.kind, a.dtype, a.constant) for a in signature.arguments] == [
        ("in", "buffer", "float32", True),
        ("out", "buffer", "float16", False),
        ("n", "scalar", "int64", True),
        ("m", "scalar", "uint32", False),
        ("shared", "local", "float32", False),
        ("image", "other", "", False),
        ("unknown", "buffer", "", False),
        ("c", "buffer", "uint8", True),
    ]


def test_a_kernel_without_arguments_has_none() -> None:
    signature = read_opencl_signature(SOURCE, "second")
    assert signature is not None
    assert signature.arguments == ()


def test_what_is_not_there_is_not_found() -> None:
    assert read_opencl_signature(SOURCE, "third") is None
    assert read_opencl_entries(SOURCE) == ["first", "second"]


@pytest.mark.parametrize("cut", range(0, len(SOURCE), 7))
def test_half_a_source_is_read_without_a_fault(cut: int) -> None:
    signature = read_opencl_signature(SOURCE[:cut], "first")
    # The declaration before the kernel has one argument, the kernel itself eight.
    assert signature is None or len(signature.arguments) in (1, 8)


def test_the_build_options_are_those_of_the_driver(require_device: RequireDevice) -> None:
    require_device("opencl")
    from tapml_targets.opencl import programs

    assert set(OPENCL_OPTIONS) == set(programs.BUILD_OPTIONS)


def test_a_skeleton_has_the_signature_of_its_operator() -> None:
    from tapml.kernels.opencl_skeleton import write_opencl_skeleton

    half = Parameter("input_2", (4,), "float16", "input")
    source = write_opencl_skeleton("f", (*SCALE.parameters, half), ["S"])
    signature = read_opencl_signature(source, "f")
    assert signature is not None
    assert source.startswith("#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n")
    assert [(a.name, a.dtype, a.constant) for a in signature.arguments] == [
        ("input_0", "float32", True),
        ("input_1", "float32", True),
        ("output_0", "float32", False),
        ("input_2", "float16", True),
        ("S", "int64", True),
        ("elements", "int64", True),
    ]
