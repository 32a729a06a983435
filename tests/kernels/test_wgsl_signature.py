"""A kernel's arguments are read from WGSL, and a skeleton has what is read from it."""

from __future__ import annotations

from tapml.kernels.wgsl_signature import read_wgsl_entries, read_wgsl_signature
from tapml.kernels.wgsl_skeleton import write_wgsl_skeleton
from tapml_targets.library import Parameter

SOURCE = """\
// @compute @workgroup_size(1) fn commented() {}
struct Numbers { n : i32, scale : f32, packGridDimX : u32 }
@group(0) @binding(1) var<storage, read_write> out : array<f16>;
@group(0) @binding(0) var<storage, read> a : array<f32>;
@group(0) @binding(2) var<uniform> numbers : Numbers;
fn helper(x : f32) -> f32 { return x; }
@compute @workgroup_size(8, 2)
fn first(@builtin(global_invocation_id) at : vec3<u32>) { }
"""


def test_bindings_come_in_order_and_then_the_members_of_the_uniform() -> None:
    found = read_wgsl_signature(SOURCE, "first")
    assert found is not None
    assert [(a.name, a.kind, a.dtype, a.constant) for a in found.arguments] == [
        ("a", "buffer", "float32", True),
        ("out", "buffer", "float16", False),
        ("n", "scalar", "int32", True),
        ("scale", "scalar", "float32", True),
    ]
    assert found.line == 8


def test_entries_are_those_of_the_text_and_not_of_its_comments_or_functions() -> None:
    assert read_wgsl_entries(SOURCE) == ["first"]
    assert read_wgsl_signature(SOURCE, "helper") is None


def test_a_module_that_the_platform_refuses_is_not_judged_here() -> None:
    assert read_wgsl_signature("enable f16;\n" + SOURCE, "first") is None


def test_a_skeleton_has_the_operators_parameters_and_its_numbers() -> None:
    parameters = [
        Parameter("input_0", ("n", 4), "float32", "input"),
        Parameter("mask", ("n",), "bool", "input"),
        Parameter("output_0", ("n", 4), "int32", "output"),
    ]
    found = read_wgsl_signature(write_wgsl_skeleton("work", parameters, ["n"]), "work")
    assert found is not None
    assert [(a.name, a.dtype) for a in found.arguments] == [
        ("input_0", "float32"), ("mask", "uint32"), ("output_0", "int32"),
        ("n", "int32"), ("elements", "int32"),
    ]  # fmt: skip
