"""Operators made from Relax expressions, for tests that need a real kernel and no model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax, tirx

from tapml.plan.graph_plan import Operator, OutputKind
from tapml_targets.library import Parameter

Argument = tuple[tuple[int, ...], str]


def make_operator(
    name: str,
    arguments: Sequence[Argument],
    build: Callable[..., Any],
    kinds: tuple[OutputKind, ...] = ("value",),
) -> Operator:
    """One fused operator computing ``build(*arguments)``."""
    builder = relax.BlockBuilder()
    variables = [
        relax.Var(f"p{index}", relax.TensorType(shape, dtype))
        for index, (shape, dtype) in enumerate(arguments)
    ]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(build(*variables))
        builder.emit_func_output(result)
    module = builder.get()
    for apply in (
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
    ):
        module = apply(module)
    functions = [f for _, f in module.functions.items() if isinstance(f, tirx.PrimFunc)]
    assert len(functions) == 1, module.script()
    return operator_from(name, functions[0], len(arguments), kinds)


def operator_from(
    name: str, function: Any, reads: int, kinds: tuple[OutputKind, ...] = ("value",)
) -> Operator:
    """An operator around a PrimFunc of static shapes whose first `reads` parameters are read."""
    parameters = []
    for index, variable in enumerate(function.params):
        buffer = variable.ty
        parameters.append(
            Parameter(
                f"p{index}",
                tuple(int(extent) for extent in buffer.shape),
                str(buffer.dtype),
                "input" if index < reads else "output",
            )
        )
    text = tvm.ir.save_json(function)
    return Operator(
        name=name,
        hash=hashlib.sha256(text.encode()).hexdigest(),
        parameters=tuple(parameters),
        symbols=(),
        function=text,
        script=function.script(),
        output_kinds=kinds,
    )
