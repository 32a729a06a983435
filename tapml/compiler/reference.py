"""The trusted platform: a plan's operators compiled by LLVM into this process.

One module for all operators, called on numpy arrays without copies. Carving time is measured
relative to it, so a call only passes pointers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tapml.compiler.reference_module import ReferenceFunction, ReferenceModule, StoredReference
from tapml.native_imports import import_tvm
from tapml.plan.graph_plan import GraphPlan, Operator
from tapml_targets.codegen.host_function import calls_runtime, for_host
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.errors import CompileError, TapmlError
from tapml_targets.library import Parameter

__all__ = ["ReferenceFunction", "ReferenceModule", "compile_reference"]


def compile_reference(plan: GraphPlan | Iterable[Operator]) -> ReferenceModule:
    """Compile operators for the CPU of this process.

    Parameters
    ----------
    plan
        Operators, or a plan with operators.

    Returns
    -------
    ReferenceModule
        A mapping from operator name to function. Looking up an operator that LLVM failed to compile
        raises its CompileError; the others work.
    """
    operators = plan.operators.values() if isinstance(plan, GraphPlan) else plan
    return build_for_this_process(
        [(_source(operator), operator.parameters) for operator in operators], for_host
    )


def _source(operator: Operator) -> OperatorSource:
    return OperatorSource(
        operator.name, operator.function_for("cpu"), operator.parameters, operator.symbols
    )


def build_for_this_process(
    sources: Sequence[tuple[OperatorSource, tuple[Parameter, ...]]], edit: Callable[[str], str]
) -> ReferenceModule:
    """Compile `sources`, each with its parameters, after applying `edit` to the function's JSON."""
    import_tvm()
    from tapml.compiler.host_build import HostFunction, build_host_functions

    failures: dict[str, CompileError] = {}
    functions: dict[str, HostFunction] = {}
    for index, (source, _) in enumerate(sources):
        try:
            text = edit(source.function)
        except TapmlError as error:
            failures[source.name] = CompileError(f"operator {source.name!r}: {error}")
            continue
        # Two names may differ only in characters that C identifiers cannot have.
        functions[source.name] = HostFunction(f"{source.identifier}__{index}", text)
    built = build_host_functions(functions)
    callables = {
        source.name: ReferenceFunction(
            source.name, parameters, source.symbols, built.functions[source.name]
        )
        for source, parameters in sources
        if source.name in built.functions
    }
    stored = None
    # Packed functions need `import tvm`; its runtime alone does not have them.
    packed = any(calls_runtime(each.function) for each in functions.values())
    if built.key and not failures and not packed:
        stored = StoredReference(built.key, {name: f.symbol for name, f in functions.items()})
    return ReferenceModule(callables, {**failures, **built.failures}, stored)
