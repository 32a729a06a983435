"""A driver reads from a kernel's head what it takes, and packs its numbers as Metal does."""

from __future__ import annotations

import struct

import pytest

from tapml_targets.driver import BufferUse, KernelArgument, ScalarUse
from tapml_targets.errors import CompileError, InputError
from tapml_targets.metal.interface import Interface, read_interface

SOURCE = """\
/* kernel void work(int commented) */
struct work_args_t {
  int n; // its rows
  long stride;
  half factor;
};
kernel void work(  device float* out [[ buffer(0) ]],
  const device half4* a [[buffer(1)]],
  constant work_args_t& arg [[ buffer(2) ]],
  uint3 blockIdx [[threadgroup_position_in_grid]]
) { }
kernel void plain(device int* o [[buffer(0)]], uint i [[thread_position_in_grid]]) {}
"""


def test_the_places_of_buffers_and_the_structure_of_numbers_are_found() -> None:
    assert read_interface(SOURCE, "work") == Interface(2, ("int32", "int64", "float16"))
    assert read_interface(SOURCE, "plain") == Interface(1, ())


def test_each_number_lies_at_a_multiple_of_its_size_and_the_whole_of_its_widest() -> None:
    given: list[KernelArgument] = [
        BufferUse("out", 0, 4), BufferUse("a", 0, 8),
        ScalarUse(3, "int32"), ScalarUse(-(2**40), "int64"), ScalarUse(0.5, "float16"),
    ]  # fmt: skip
    uses, numbers = read_interface(SOURCE, "work").split("work", given)
    assert uses == given[:2]
    assert numbers == struct.pack("<i4xqe6x", 3, -(2**40), 0.5)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("kernel void work(  device", "kernel void other(  device", "no kernel 'work'"),
        ("buffer(1)", "buffer(3)", "places \\[0, 3\\]"),
        ("long stride", "float4 stride", "'float4'"),
        ("struct work_args_t", "struct others", "'work_args_t', which is not declared"),
    ],
)
def test_a_kernel_of_another_form_is_refused_with_what_is_wrong(
    before: str, after: str, words: str
) -> None:
    with pytest.raises(CompileError, match=words):
        read_interface(SOURCE.replace(before, after), "work")


def test_arguments_that_the_kernel_does_not_take_are_refused() -> None:
    plain = read_interface(SOURCE, "plain")
    with pytest.raises(InputError, match="'plain' takes 1 buffers and 0 numbers, got 1 and 1"):
        plain.split("plain", [BufferUse("o", 0, 4), ScalarUse(1, "int32")])
    work = read_interface(SOURCE, "work")
    numbers = [ScalarUse(2**40, "int32"), ScalarUse(0, "int64"), ScalarUse(0, "float16")]
    with pytest.raises(InputError, match="1099511627776 does not fit int32"):
        work.split("work", [BufferUse("out", 0, 4), BufferUse("a", 0, 4), *numbers])
