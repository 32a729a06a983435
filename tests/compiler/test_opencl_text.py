"""What is understood of OpenCL C is put back together the same; what is not is left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tapml.compiler.opencl_merging import Part, local_bytes, merged_text, prologue_of
from tapml.compiler.opencl_text import KernelParameter, LocalArray, read_kernel

PLAIN = """\
// Function: turn_kernel
__kernel void turn_kernel(__global float* restrict a, __global const int* restrict b, int n);
__kernel void turn_kernel(__global float* restrict a, __global const int* restrict b, int n) {
  __local float buffer[64];
  int i = (((convert_int(get_group_id(0))) * 64) + (convert_int(get_local_id(0))));
  ((volatile __local float*)buffer)[get_local_id(0)] = a[i] * 1.00000000e-05f;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (n <= b[get_group_id(1)]) {
    return;
  }
  a[i] = ((volatile __local float*)buffer)[(63 - get_local_id(0))];
}
"""


def test_a_plain_kernel_is_taken_apart() -> None:
    text = read_kernel(PLAIN.encode(), "turn_kernel")
    assert text is not None
    assert text.prologue == ()
    assert text.parameters == (
        KernelParameter("__global float* restrict", "a"),
        KernelParameter("__global const int* restrict", "b"),
        KernelParameter("int", "n"),
    )
    assert text.local_arrays == (LocalArray("float", "buffer", 64),)
    assert local_bytes([text]) == 256
    body = text.body(0)
    assert "(convert_int(tapml_group)) * 64" in body
    assert "b[get_group_id(1)]" in body
    assert "__local float buffer[64]" not in body
    assert "b[tapml_group]" in text.body(1)


def test_one_kernel_of_several_is_found() -> None:
    other = PLAIN.replace("turn_kernel", "other_kernel").replace("63 -", "62 -")
    text = read_kernel((PLAIN + other).encode(), "other_kernel")
    assert text is not None
    assert "62 -" in text.body(0)
    assert read_kernel(PLAIN.encode(), "missing") is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("__kernel void turn_kernel(__global", "__kernel void turn_kernel(__local"),
        ("{\n  __local", "{ /* get_group_id(0) */\n  __local"),
        ("int i =", "int i = get_global_id(0); int j ="),
        ("int i =", "int i = get_num_groups(0); int j ="),
        ("get_group_id(1)", "get_group_id(n)"),
        ("get_group_id(1)", "get_group_id"),
        ("int i =", "int tapml_group = 0; int i ="),
        ("__local float buffer[64];", "__local float buffer[64], more[2];"),
        ("__local float buffer[64];", "__local float buffer[n];"),
        ("__local float buffer[64];", "__local float* buffer = 0;"),
        ("__local float buffer[64];", "__local float buffer[0];"),
        ("  __local float buffer[64];", "  { __local float buffer[64]; }"),
        ("__local float buffer[64];", "local float buffer[64];"),
        ("// Function", "float helper(float x) { return x; }\n// Function"),
        ("// Function", "__constant float table[2] = {1, 2};\n// Function"),
        ("// Function", "#define get_local_id(x) get_group_id(x)\n// Function"),
        ("// Function", "#define native_exp get_group_id\n// Function"),
        ("// Function", '#include "more.h"\n// Function'),
        ("// Function", "/* turn */\n// Function"),
        ("  barrier", "#pragma unroll\n  barrier"),
        ("  barrier", "  turn_kernel(a, b, n); barrier"),
        ("  barrier", '  printf("x"); barrier'),
        ("  barrier", "  goto end; end: barrier"),
        ("int i =", "int size = sizeof(buffer); int i ="),
        ("int i =", "float first = ((__local float*)&buffer)[0]; int i ="),
        ("restrict a,", "restrict // read\n a,"),
        ("  barrier", "  // to be gone on \\\n  barrier"),
        ("  barrier", "  // \u00e9\n  barrier"),
        ("  barrier", "  a<:i:> = 0; barrier"),
        ("__kernel void", "__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void"),
        ("int n)", "float4x n)"),
        ("int n)", "image2d_t n)"),
        ("return;\n  }", "return;\n  "),
    ],
)
def test_text_that_is_not_understood_is_none(old: str, new: str) -> None:
    text = PLAIN.replace(old, new)
    assert text != PLAIN
    assert read_kernel(text.encode(), "turn_kernel") is None


def test_bytes_that_are_no_text_are_none() -> None:
    assert read_kernel(b"\x7fELF\xff\x00", "turn_kernel") is None
    assert read_kernel(b"", "turn_kernel") is None


def test_prologues_that_contradict_each_other_are_not_joined() -> None:
    enabling = "#ifdef cl_khr_fp16\n#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n#endif\n"
    precise = "#pragma OPENCL FP_CONTRACT OFF\n#define native_exp exp\n#line 1\n"
    plain, half, exact = (
        read_kernel((start + PLAIN).encode(), "turn_kernel") for start in ("", enabling, precise)
    )
    assert plain is not None
    assert half is not None
    assert exact is not None
    assert prologue_of([plain, half]) == half.prologue != ()
    assert prologue_of([exact, exact]) == exact.prologue
    assert prologue_of([plain, exact]) is None
    assert prologue_of([half, exact]) is None


def test_a_merged_kernel_is_read_as_one_that_was_not_written_here() -> None:
    """What was merged is never merged again: its names are the writer's own."""
    text = read_kernel(PLAIN.encode(), "turn_kernel")
    assert text is not None
    parts = [Part("turn", text, (0, 1, 2), 4), Part("turn", text, (3, 1, 2), None)]
    declared = [each.declared for each in (*text.parameters, text.parameters[0])]
    merged = merged_text(parts, declared, 0, ())
    assert merged.count("static void") == 1
    assert "(tapml_group < (size_t)4 ? tapml_0 : tapml_3)" in merged
    assert read_kernel(merged.encode(), "tapml_merged") is None


@pytest.mark.parametrize("start", ["", "// no barrier(CLK_LOCAL_MEM_FENCE) here\n"])
def test_where_one_body_has_a_barrier_each_call_ends_with_one(start: str) -> None:
    plain = (
        f"__kernel void free_kernel(__global float* restrict a) {{\n  {start}  a[0] = 1.0f;\n}}\n"
    )
    free, other, meeting = (
        read_kernel(text.encode(), name)
        for text, name in (
            (plain, "free_kernel"),
            (plain.replace("1.0f", "2.0f"), "free_kernel"),
            (PLAIN, "turn_kernel"),
        )
    )
    assert free is not None
    assert other is not None
    assert meeting is not None
    declared = [each.declared for each in meeting.parameters]
    one, turn = Part("free", free, (0,), 1), Part("turn", meeting, (0, 1, 2), None)
    # Behind the choice, where all threads of a group are, whatever a body returns early.
    ended = "tapml_group - (size_t){});\n    barrier(CLK_LOCAL_MEM_FENCE);\n  }}"
    mixed = merged_text([one, Part("other", other, (1,), 2), turn], declared, 0, ())
    assert all(ended.format(start) in mixed for start in (0, 1, 2))
    for parts in ([one, Part("other", other, (1,), None)], [replace(turn, end=1), turn]):
        assert "barrier" not in merged_text(parts, declared, 0, ()).partition("__kernel")[2]
