"""A kernel language is data: what TVM prints in CUDA C and in Metal is read without new code."""

from __future__ import annotations

from typing import Final

from tapml.kernels.signature_reader import read_entries, read_signature
from tapml.kernels.skeleton import write_skeleton
from tapml_targets.kernel_language import KernelLanguage, ParameterSyntax, Skeleton
from tapml_targets.library import Parameter
from tapml_targets.metal.language import LANGUAGE as METAL

_C_TYPES: Final = {
    "float": "float32", "half": "float16", "int": "int32", "uint": "uint32", "long": "int64",
    "int64_t": "int64", "unsigned int": "uint32",
}  # fmt: skip
_ELEMENTS: Final = {"float32": "float", "float16": "half", "int32": "int"}

CUDA: Final = KernelLanguage(
    dialect="cuda-c",
    extension="cu",
    types=_C_TYPES,
    entry=r"\b__global__ void (?P<name>\w+) \(",
    arguments=ParameterSyntax(
        qualifiers=frozenset({"__restrict__", "const"}), vector=r"(?P<element>[a-z]+)[234]"
    ),
    dropped=frozenset({"__launch_bounds__"}),
    skeleton=Skeleton(
        text='extern "C" __global__ void $entry(\n    $buffers,\n    $numbers) {\n$places\n}\n',
        read="const $element* __restrict__ $name",
        written="$element* __restrict__ $name",
        number="int $name",
        elements=_ELEMENTS,
        other=("char", "char"),
        integer="int32",
    ),
)
IN_CUDA: Final = """\
#include <cuda_fp16.h>
extern "C" __global__ void __launch_bounds__(64) rms_kernel(float* __restrict__ out, const half4* __restrict__ a, int64_t n);
extern "C" __global__ void __launch_bounds__(64) rms_kernel(
    float* __restrict__ out, const half4* __restrict__ a, int64_t n) {
  __shared__ float red[32];
}
"""  # noqa: E501 - as TVM prints it
IN_METAL: Final = """\
#include <metal_stdlib>
using namespace metal;
struct rms_kernel_args_t {
  long n;
  float eps;
};
kernel void rms_kernel(  device float* out [[ buffer(0) ]],
  const device half4* a [[ buffer(1) ]],
  constant rms_kernel_args_t& arg [[ buffer(2) ]],
  uint3 blockIdx [[threadgroup_position_in_grid]],
  uint3 threadIdx [[thread_position_in_threadgroup]]
) {
  threadgroup float red[32];
}
"""


def test_what_tvm_prints_in_cuda_c_is_read() -> None:
    assert read_entries(CUDA, IN_CUDA) == ["rms_kernel"]
    found = read_signature(CUDA, IN_CUDA, "rms_kernel")
    assert found is not None and found.line == 3
    assert [(a.name, a.kind, a.dtype, a.constant) for a in found.arguments] == [
        ("out", "buffer", "float32", False),
        ("a", "buffer", "float16", True),
        ("n", "scalar", "int64", False),
    ]


def test_what_tvm_prints_in_metal_is_read_with_the_members_of_its_structure() -> None:
    assert read_entries(METAL, IN_METAL) == ["rms_kernel"]
    found = read_signature(METAL, IN_METAL, "rms_kernel")
    assert found is not None and found.line == 7
    assert [(a.name, a.kind, a.dtype, a.constant) for a in found.arguments] == [
        ("out", "buffer", "float32", False),
        ("a", "buffer", "float16", True),
        ("n", "scalar", "int64", True),
        ("eps", "scalar", "float32", True),
    ]
    assert found.arguments[1].text == "const device half4* a [[ buffer(1) ]]"


def test_a_skeleton_has_the_signature_that_is_read_from_it() -> None:
    parameters = [
        Parameter("given", ("n", 4), "float16", "input"),
        Parameter("made", ("n", 4), "float32", "output"),
    ]
    for language in (CUDA, METAL):
        source = write_skeleton(language, "work", parameters, ["n"], 64)
        found = read_signature(language, source, "work")
        assert found is not None
        assert [(a.name, a.dtype, a.constant) for a in found.arguments][:2] == [
            ("given", "float16", True),
            ("made", "float32", False),
        ]
        assert [a.name for a in found.arguments][2:] == ["n", "elements"]
