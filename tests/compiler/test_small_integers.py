"""Integers of 8 and 16 bits wrap in the middle of an expression, as PyTorch's do."""

from __future__ import annotations

from tvm import te, tirx

from tapml_targets.opencl.codegen import generate
from tapml_targets.target import Target
from tests.compiler.operators import operator, source


def test_a_product_of_bytes_is_a_byte_before_it_is_a_float() -> None:
    given = te.placeholder((8,), "int8", name="given")
    made = te.compute((8,), lambda i: (given[i] * tirx.const(3, "int8")).astype("float32"), "made")
    of = operator("tripled", te.create_prim_func([given, made]))
    (module,) = generate(source(of), Target("opencl")).modules
    assert "convert_float((convert_char(((convert_int(" in module.code.decode()
