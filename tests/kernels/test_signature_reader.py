"""One reader finds a kernel's arguments in every language, without a parser for all of it."""

from __future__ import annotations

import pytest

from tapml.kernels.signature import Signature
from tapml.kernels.signature_reader import read_entries, read_signature
from tapml.kernels.skeleton import write_skeleton
from tapml_targets.kernel_language import KernelLanguage
from tapml_targets.library import Parameter
from tapml_targets.opencl.language import LANGUAGE as OPENCL_C
from tapml_targets.platforms import kernel_languages
from tapml_targets.vulkan.glslang import compile_glsl
from tapml_targets.vulkan.language import LANGUAGE as GLSL
from tapml_targets.vulkan.reflection import read_interface
from tapml_targets.webgpu.language import LANGUAGE as WGSL
from tests.kernels.operators import SCALE

IN_OPENCL_C = """\
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
IN_GLSL = """\
#version 450
layout(local_size_x = 32) in;
layout(std430, set = 0, binding = 1) readonly buffer B { float given[]; };  // void other()
layout(std430, set = 0, binding = 0) buffer A { int made[]; };
layout(push_constant) uniform Numbers { int n; float factor; uint tapml_grid_x; } numbers;
void helper() {}
void first() { made[0] = int(given[0]); }
void main() { first(); }
"""
IN_WGSL = """\
// @compute @workgroup_size(1) fn commented() {}
/* /* @compute @workgroup_size(1) fn nested() {} */ @compute @workgroup_size(1) fn still() {} */
struct Numbers { n : i32, scale : f32, packGridDimX : u32 }
@group(0) @binding(1) var<storage, read_write> out : array<f16>;
@group(0) @binding(0) var<storage, read> a : array<f32>;
@group(0) @binding(2) var<uniform> numbers : Numbers;
fn helper(x : f32) -> f32 { return x; }
@compute @workgroup_size(8, 2)
fn first(@builtin(global_invocation_id) at : vec3<u32>) { }
"""
SOURCES = [(OPENCL_C, IN_OPENCL_C), (GLSL, IN_GLSL), (WGSL, IN_WGSL)]
every_source = pytest.mark.parametrize(
    ("language", "source"), SOURCES, ids=lambda each: getattr(each, "dialect", "")
)


def found(language: KernelLanguage, source: str, entry: str) -> Signature:
    signature = read_signature(language, source, entry)
    assert signature is not None
    return signature


def plain(signature: Signature) -> list[tuple[str, str, str, bool]]:
    return [(a.name, a.kind, a.dtype, a.constant) for a in signature.arguments]


def test_parameters_have_kind_dtype_and_constness() -> None:
    signature = found(OPENCL_C, IN_OPENCL_C, "first")
    assert signature.line == 8
    assert plain(signature) == [
        ("in", "buffer", "float32", True),
        ("out", "buffer", "float16", False),
        ("n", "scalar", "int64", True),
        ("m", "scalar", "uint32", False),
        ("shared", "local", "float32", False),
        ("image", "other", "", False),
        ("unknown", "buffer", "", False),
        ("c", "buffer", "uint8", True),
    ]
    assert signature.arguments[1].text == "global half *out"


def test_bindings_come_in_the_order_of_their_places_and_then_the_numbers() -> None:
    signature = found(GLSL, IN_GLSL, "first")
    assert signature.line == 7
    assert plain(signature) == [
        ("made", "buffer", "int32", False),
        ("given", "buffer", "float32", True),
        ("n", "scalar", "int32", True),
        ("factor", "scalar", "float32", True),
    ]
    signature = found(WGSL, IN_WGSL, "first")
    assert signature.line == 9
    assert plain(signature) == [
        ("a", "buffer", "float32", True),
        ("out", "buffer", "float16", False),
        ("n", "scalar", "int32", True),
        ("scale", "scalar", "float32", True),
    ]


@every_source
def test_entries_are_those_of_the_text_and_not_of_comments_strings_or_functions(
    language: KernelLanguage, source: str
) -> None:
    expected = ["first", "second"] if language is OPENCL_C else ["first"]
    assert read_entries(language, source) == expected
    for other in ("third", "helper", "commented", "nested", "still"):
        assert read_signature(language, source, other) is None


def test_a_kernel_without_arguments_has_none() -> None:
    assert found(OPENCL_C, IN_OPENCL_C, "second").arguments == ()


@every_source
def test_half_a_source_is_read_without_a_fault(language: KernelLanguage, source: str) -> None:
    for cut in range(0, len(source), 7):
        signature = read_signature(language, source[:cut], "first")
        # OpenCL C declares the kernel before, with one argument.
        assert signature is None or len(signature.arguments) in (1, 4, 8)


def test_a_binding_in_an_unknown_form_leaves_the_signature_to_the_compiler() -> None:
    before = "@group(0) @binding(1) var<storage"
    assert before in IN_WGSL
    turned = IN_WGSL.replace(before, "@binding(1) @group(0) var<storage")
    assert read_signature(WGSL, turned, "first") is None
    assert "int made[]; }" in IN_GLSL
    longer = IN_GLSL.replace("int made[]; }", "int made[]; int more; }")
    assert read_signature(GLSL, longer, "first") is None


@pytest.mark.parametrize("platform", sorted(kernel_languages()))
def test_a_skeleton_has_the_signature_of_its_operator(platform: str) -> None:
    language = kernel_languages()[platform]
    half = Parameter("input_2", (4,), "float16", "input")
    source = write_skeleton(language, "f", (*SCALE.parameters, half), ["S"], 32)
    integer = language.skeleton.integer
    assert read_entries(language, source) == ["f"]
    assert [(a.name, a.dtype, a.constant) for a in found(language, source, "f").arguments] == [
        ("input_0", "float32", True),
        ("input_1", "float32", True),
        ("output_0", "float32", False),
        ("input_2", "float16", True),
        ("S", integer, True),
        ("elements", integer, True),
    ]
    assert f"{language.line_comment} Write output_0[element] here." in source


def test_what_storage_cannot_hold_lies_in_words() -> None:
    parameters = [
        Parameter("mask", ("n",), "bool", "input"),
        Parameter("made", ("n",), "int8", "output"),
    ]
    source = write_skeleton(WGSL, "work", parameters, ["n"], 64)
    assert "array<u32>;  // bool" in source
    assert "array<atomic<u32>>;  // int8" in source


def test_a_skeleton_compiles_and_takes_what_it_says() -> None:
    parameters = [
        Parameter("given", ("n",), "float16", "input"),
        Parameter("indices", ("n",), "int64", "input"),
        Parameter("made", ("n",), "float32", "output"),
    ]
    interface = read_interface(
        compile_glsl(write_skeleton(GLSL, "work", parameters, ["n"], 64), "work"), "work"
    )
    assert interface.read_only == (True, True, False)
    assert [each.name for each in interface.scalars] == ["n", "elements"]
