"""Float64 twins: operators with every float32, float16 and bfloat16 widened to float64.

A twin shares TVM's legalisation with its operator, so it finds errors of a target's kernel but not
of the import. The torch sub-graph in float64 is the independent oracle.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from msgspec import structs

from tapml.compiler.reference import build_for_this_process
from tapml.compiler.reference_module import ReferenceModule, StoredReference
from tapml.compiler.widening import widen
from tapml.plan.graph_plan import Operator
from tapml_targets.codegen.host_function import for_host
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.dtype import dtype
from tapml_targets.library import Parameter


def compile_twins(operators: Iterable[Operator]) -> ReferenceModule:
    """Compile the float64 twins of `operators` for the CPU of this process.

    Returns
    -------
    ReferenceModule
        Called like the reference, but every floating-point parameter is a float64 array.
    """
    return build_for_this_process(
        [
            (
                OperatorSource(o.name, o.function_for("cpu"), o.parameters, o.symbols),
                tuple(map(_widened, o.parameters)),
            )
            for o in operators
        ],
        lambda function: for_host(widen(function)),
    )


def load_twins(operators: Iterable[Operator], stored: StoredReference) -> ReferenceModule | None:
    """Load cached twins from :func:`compile_twins`; None if their code is gone."""
    return stored.load(
        replace(operator, parameters=tuple(map(_widened, operator.parameters)))
        for operator in operators
    )


def _widened(parameter: Parameter) -> Parameter:
    return (
        structs.replace(parameter, dtype="float64")
        if dtype(parameter.dtype).is_float
        else parameter
    )
