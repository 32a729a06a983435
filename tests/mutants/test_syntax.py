"""TVM's OpenCL C is read as a tree that knows where every part of it lies."""

from __future__ import annotations

import pytest

from scripts.mutants.expression_parser import UnknownSyntaxError
from scripts.mutants.parser import parse_module
from scripts.mutants.syntax import KernelText
from tests.mutants.kernels import GATE, REDUCE


def _kernel(source: str) -> KernelText:
    (kernel,) = parse_module(source)
    return kernel


def test_a_prototype_is_no_kernel() -> None:
    assert _kernel(GATE).name == "gate_kernel"


def test_every_part_of_an_expression_is_balanced_text() -> None:
    for source in (GATE, REDUCE):
        kernel = _kernel(source)
        for statement in kernel.statements():
            for expression in statement.expressions():
                for part in expression.walk():
                    text = kernel.text(part)
                    assert text.count("(") == text.count(")")
                    assert text.count("[") == text.count("]")


def test_a_declaration_that_nothing_reads_is_left_out() -> None:
    assert "cse_v1" in GATE
    kinds = [statement.kind for statement in _kernel(GATE).statements()]
    assert kinds == ["if", "store"]


def test_an_index_knows_its_array_and_its_memory() -> None:
    kernel = _kernel(REDUCE)
    spaces = {
        part.array: kernel.space(part)
        for statement in kernel.statements()
        for expression in statement.expressions()
        for part in expression.walk()
        if part.kind == "index"
    }
    assert spaces == {
        "red_ptr": "local", "x_ptr": "global", "sum_ptr": "private", "top_ptr": "local",
        "out_ptr": "global",
    }  # fmt: skip


def test_types_follow_the_names_of_functions_and_the_wider_operand() -> None:
    source = """__kernel void k(__global half* a, __global int* n, long S) {
  float x = (convert_float(a[0]));
  long i = (n[0] + S);
  bool b = (n[0] < 3);
}
"""
    (kernel,) = parse_module(source)
    values = [statement.value for statement in kernel.body]
    assert [value.type for value in values if value] == ["float", "long", "bool"]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("__kernel void k(long S) { while (1) { } }", "expected"),
        ("__kernel void k(long S) { S += 1; }", "expected"),
        ("__kernel void k(long S) { long a = 3;", "ends inside"),
        ("__kernel void k(struct pair p) { }", "a type"),
        ("int helper(int a) { return a; }", "'__kernel'"),
        ('__kernel void k(long S) { "text"; }', "unknown text"),
    ],
)
def test_text_of_another_form_is_refused(source: str, says: str) -> None:
    with pytest.raises(UnknownSyntaxError, match=says):
        parse_module(source)
