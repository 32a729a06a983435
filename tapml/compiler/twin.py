"""Float64 twins: the operators with every float32, float16 and bfloat16 made float64.

A twin shares TVM's legalisation with the operator it checks, so it finds what a target's kernel
adds, not what the import got wrong; the torch sub-graph in float64 is the independent oracle.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tapml.compiler.reference import ReferenceModule, build_for_this_process
from tapml.compiler.stored_reference import StoredReference
from tapml.compiler.widening import widen
from tapml.graph.plan import Operator
from tapml_targets.codegen.host_function import for_host
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.dtype import dtype
from tapml_targets.library import Parameter


def compile_twins(operators: Iterable[Operator]) -> ReferenceModule:
    """Compile the float64 twins of `operators` for the CPU of this process.

    Returns
    -------
    ReferenceModule
        Called like the reference; every floating-point parameter is a float64 array. An operator
        that works on the bits of its numbers raises CompileError when it is looked up.
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
    """The twins that :func:`compile_twins` compiled before; None where their code is gone."""
    return stored.load(
        replace(operator, parameters=tuple(map(_widened, operator.parameters)))
        for operator in operators
    )


def _widened(parameter: Parameter) -> Parameter:
    return replace(parameter, dtype="float64") if dtype(parameter.dtype).is_float else parameter
