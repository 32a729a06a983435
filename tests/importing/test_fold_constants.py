"""Constants are folded to the bits that TVM folds them to."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op, transform

from tapml.importing.fold_constants import fold_constants


def program(values: np.ndarray[Any, Any]) -> Any:
    """What is computed of constants, beside a sum with the input, as functions of TVM."""
    builder = relax.BlockBuilder()
    given = relax.Var("given", relax.TensorType(values.shape, "float32"))
    with builder.function("main", [given]):
        with builder.dataflow():
            known = relax.const(values)
            made = builder.emit(op.divide(op.exp(known), op.sum(known, axis=[1], keepdims=True)))
            whole = builder.emit(op.astype(op.permute_dims(made), "int32"))
            twice = builder.emit(op.add(whole, whole))
            found = builder.emit_output((op.add(given, made), twice))
        builder.emit_func_output(found)
    return transform.LegalizeOps()(transform.Normalize()(builder.get()))


def test_they_are_folded_as_tvm_folds_them() -> None:
    drawn = np.random.default_rng(3).standard_normal((5, 37)).astype(np.float32)
    # The second time with functions that are compiled already, and with other constants.
    for values in (drawn, drawn + 1):
        with tvm.target.Target("llvm"):
            folded, expected = (
                transform.DeadCodeElimination(["main"])(fold(program(values)))
                for fold in (fold_constants, transform.FoldConstant())
            )
        tvm.ir.assert_structural_equal(folded, expected)
        assert len(folded.functions) < len(program(values).functions)
