"""Relax modules become plans, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.script import relax as R
from tvm.script import tirx as T

import tapml as tml
from tapml.compiler.reference import compile_reference
from tapml.importing.importer import import_relax
from tapml.rooting.interpreter import run_entry
from tapml_targets.errors import InputError, UnsupportedOperatorError


def block(name: str = "transformer_block") -> Any:
    """relu(x @ w) + x over a dynamic number of rows."""
    builder = relax.BlockBuilder()
    rows = tirx.Var("rows", "int64")
    x = relax.Var("x", relax.TensorType([rows, 8], "float32"))
    w = relax.Var("w", relax.TensorType([8, 8], "float32"))
    with builder.function(name, [x, w]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, w))
            output = builder.emit_output(relax.op.add(relax.op.nn.relu(product), x))
        builder.emit_func_output(output)
    return builder.get()


def test_a_relax_function_is_a_plan_of_one_entry() -> None:
    plan = import_relax(block(), "transformer_block").plan
    entry = plan.entries["transformer_block"]
    assert entry.inputs == ("x", "w")
    assert entry.symbols == ("rows",)
    generator = np.random.default_rng(1)
    x = generator.standard_normal((5, 8)).astype(np.float32)
    w = generator.standard_normal((8, 8)).astype(np.float32)
    values = run_entry(entry, compile_reference(plan), {"x": x, "w": w})
    expected = np.maximum(x @ w, 0) + x
    np.testing.assert_allclose(values[entry.outputs[0]], expected, atol=1e-5)


def test_an_entry_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(InputError, match=r"no function 'decode'; it has: transformer_block"):
        import_relax(block(), "decode")


def test_the_only_function_is_taken_whatever_its_name() -> None:
    assert list(import_relax(block("decode")).plan.entries) == ["decode"]
    assert tml.Module(block("decode")).entry == "decode"


def test_of_several_functions_one_has_to_be_named() -> None:
    several = block("prefill")
    several.update(block("decode"))
    with pytest.raises(InputError, match=r"several functions \(\w+, \w+\)"):
        tml.Module(several)
    assert tml.Module(several, "prefill").entry == "prefill"


def test_an_opaque_builtin_is_refused() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            hidden = relax.call_pure_packed("vm.builtin.something", x, ty_args=x.ty)
            output = builder.emit_output(hidden)
        builder.emit_func_output(output)
    with pytest.raises(UnsupportedOperatorError, match=r"vm\.builtin\.something"):
        import_relax(builder.get())


def test_a_shape_that_only_the_run_knows_is_refused() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(None, "float32", ndim=1))
    n = tirx.Var("n", "int64")
    with builder.function("main", [x]):
        with builder.dataflow():
            known = builder.match_cast(x, relax.TensorType([n], "float32"))
            output = builder.emit_output(relax.op.add(known, known))
        builder.emit_func_output(output)
    with pytest.raises(UnsupportedOperatorError, match="shape"):
        import_relax(builder.get())


def test_an_in_place_operator_is_refused() -> None:
    @tvm.script.ir_module
    class InPlace:
        @T.prim_func(private=True, s_tir=True)
        def double(x: T.Buffer((4,), "float32")):  # type: ignore[no-untyped-def,valid-type]  # noqa: ANN202
            for i in range(4):
                with T.sblock("double"):
                    v = T.axis.spatial(4, i)
                    x[v] = x[v] * T.float32(2)

        @R.function
        def main(x: R.Tensor((4,), "float32")):  # type: ignore[no-untyped-def,valid-type]  # noqa: ANN202
            cls = InPlace
            with R.dataflow():
                y = R.call_tir_inplace(
                    cls.double, (x,), inplace_indices=[0], out_ty=R.Tensor((4,), "float32")
                )
                R.output(y)
            return y

    with pytest.raises(UnsupportedOperatorError, match=r"in-place call relax\.call_tir_inplace"):
        import_relax(InPlace)
