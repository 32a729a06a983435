"""Operators with dynamic shapes, made from TVM's own building blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, te, tirx
from tvm.relax import transform
from tvm.relax.backend import DispatchSortScan

from tapml.importing.infinite_starts import begin_at_infinity
from tapml.plan.graph_plan import Operator
from tapml_targets.codegen.expression import translate
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.driver import Driver, TensorUse
from tapml_targets.evaluator import LoadedLibrary
from tapml_targets.library import Library, Parameter
from tapml_targets.target import Target

OPENCL = Target("opencl")


class _Names(dict[Any, Any]):
    """Every variable stands for its own name."""

    def __missing__(self, variable: Any) -> str:
        return str(variable.name)

    def __contains__(self, variable: object) -> bool:
        return True


def operator(name: str, function: Any, outputs: int = 1, symbols: tuple[str, ...] = ()) -> Operator:
    """An operator around a PrimFunc whose last `outputs` tensors are written."""
    tensors = len(function.params) - len(symbols)
    parameters = tuple(
        Parameter(
            f"p{index}",
            tuple(translate(extent, _Names()) for extent in buffer.shape),
            str(buffer.dtype),
            "output" if index >= tensors - outputs else "input",
        )
        for index, buffer in enumerate(function.params[:tensors])
    )
    return Operator(
        name=name,
        hash=f"{tvm_ffi.structural_hash(function) & (2**64 - 1):016x}",
        parameters=parameters,
        symbols=symbols,
        function=tvm.ir.save_json(function),
        script=function.script(),
        output_kinds=tuple("value" for _ in range(outputs)),
    )


def source(of: Operator) -> OperatorSource:
    return OperatorSource(of.name, of.function, of.parameters, of.symbols)


def from_relax(
    name: str,
    shape: tuple[Any, ...],
    build: Callable[[Any], Any],
    *,
    dtype: str = "float32",
    outputs: int = 1,
    kind: str = "llvm",
) -> Operator:
    """One operator out of a Relax expression; a text in `shape` is a dynamic extent."""
    known: dict[str, Any] = {}
    extents = [
        known.setdefault(e, tirx.Var(e, "int64")) if isinstance(e, str) else e for e in shape
    ]
    variable = relax.Var("x", relax.TensorType(extents, dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [variable]):
        with builder.dataflow():
            result = builder.emit_output(build(variable))
        builder.emit_func_output(result)
    module = builder.get()
    with tvm.target.Target(kind):
        for apply in (
            DispatchSortScan(),
            transform.LegalizeOps(),
            begin_at_infinity,
            transform.AnnotateTIROpPattern(),
            transform.FuseOps(),
            transform.FuseTIR(),
            transform.DeadCodeElimination(),
        ):
            module = apply(module)
    functions = [f for _, f in module.functions_items() if isinstance(f, tirx.PrimFunc)]
    assert len(functions) == 1, module.script()
    return operator(name, functions[0], outputs)


def softmax(name: str = "softmax", columns: int = 100) -> Operator:
    return from_relax(name, ("n", columns), lambda x: relax.op.nn.softmax(x, axis=-1))


def scale(name: str = "scale", *, factor: float = 2.0, dtype: str = "float32") -> Operator:
    """Multiplies ``(n, 8)`` by a constant."""
    rows = tirx.Var("n", "int64")
    given = te.placeholder((rows, 8), dtype, name="given")
    scaled = te.compute((rows, 8), lambda i, j: given[i, j] * tirx.const(factor, dtype), "scaled")
    return operator(name, te.create_prim_func([given, scaled]))


def matmul_transposed(name: str = "matmul", *, rows: int | None = None) -> Operator:
    """``(n, 48) @ (32, 48).T``."""
    extent = tirx.Var("n", "int64") if rows is None else rows
    given = te.placeholder((extent, 48), "float32", name="given")
    weight = te.placeholder((32, 48), "float32", name="weight")
    k = te.reduce_axis((0, 48), name="k")
    product = te.compute(
        (extent, 32), lambda i, j: te.sum(given[i, k] * weight[j, k], axis=k), "product"
    )
    return operator(
        name, te.create_prim_func([given, weight, product], index_dtype_override="int64")
    )


def repeated_sum(name: str = "repeated_sum") -> Operator:
    """The sum of each of ``(1, 8, n, 8)``'s last rows, three times: dlight raises a ValueError."""
    rows = tirx.Var("n", "int64")
    given = te.placeholder((1, 8, rows, 8), "float32", name="given")
    k = te.reduce_axis((0, 8), name="k")
    total = te.compute((1, 8, rows), lambda _, h, i: te.sum(given[0, h, i, k], axis=k), "total")
    repeated = te.compute(
        (1, 2, 4, rows, 3), lambda _, g, s, i, c: total[0, g * 4 + s, i] * 2.0, "repeated"
    )
    return operator(name, te.create_prim_func([given, repeated], index_dtype_override="int64"))


def assert_sums_are_repeated(found: np.ndarray[Any, Any], given: np.ndarray[Any, Any]) -> None:
    """What :func:`repeated_sum` gives."""
    total = 2 * given.sum(-1).reshape(1, 2, 4, -1, 1)
    np.testing.assert_allclose(found, np.broadcast_to(total, found.shape), atol=1e-5)


def run(
    driver: Driver,
    library: Library,
    name: str,
    arrays: list[np.ndarray[Any, Any]],
    symbols: Mapping[str, int] | None = None,
    *,
    dtype: str | None = None,
) -> list[np.ndarray[Any, Any]]:
    """Call an operator or entry on a device and read every tensor back.

    `dtype` names the type of all tensors where numpy has none for it.
    """
    buffers = []
    try:
        for array in arrays:
            buffers.append(driver.allocate(array.nbytes))
            driver.write(buffers[-1], 0, memoryview(array.tobytes()))
        uses = [
            TensorUse(buffer, 0, array.shape, dtype or str(array.dtype))
            for buffer, array in zip(buffers, arrays, strict=True)
        ]
        with LoadedLibrary(driver, library) as loaded:
            loaded.call(name, uses, symbols or {})
            driver.finish()
        return [
            np.frombuffer(driver.read(buffer, 0, a.nbytes), a.dtype).reshape(a.shape).copy()
            for buffer, a in zip(buffers, arrays, strict=True)
        ]
    finally:
        for buffer in buffers:
            driver.free(buffer)


def renamed(of: Operator, name: str) -> Operator:
    return replace(of, name=name)
