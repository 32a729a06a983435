"""Lowers Relax to fused PrimFuncs and tracks provenance through the passes.

Run once, under the CPU target: the fused graph is the same for every target, only schedules and
code differ. Variable names survive all passes up to FuseOps, except FuseTransposeMatmul, after
which they are restored. FuseOps renames and merges equal groups, so it runs twice: once on the
module, and once with a number on every ``call_tir``, which keeps the groups distinct and records
their members. Both runs form the same groups in the same order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax import transform
from tvm.relax.backend import DispatchSampling, DispatchSortScan
from tvm.relax.expr_functor import PyExprMutator, mutator

from tapml.importing.empty_tensors import fold_empty_tensors
from tapml.importing.fold_constants import fold_constants
from tapml.importing.fuse_producers import fuse_producers
from tapml.importing.fused_views import operators_to_views, views_to_operators
from tapml.importing.infinite_starts import begin_at_infinity
from tapml.importing.ordered_extents import order_extents
from tapml.importing.pow_to_multiply import pow_to_multiply
from tapml.importing.relax_function import ENTRY, bindings, is_tir_call, with_main
from tapml.importing.scans import dispatch_scans
from tapml.importing.sink_elementwise import sink_reshapes
from tapml.importing.transposed_products import fuse_transposed_products
from tapml.importing.written_outputs import copy_unwritten_outputs
from tapml_targets.errors import UnsupportedOperatorError

_NUMBER = "tapml.number"


@dataclass(frozen=True)
class CallProvenance:
    """The operations behind one call of the lowered graph.

    Attributes
    ----------
    variables
        Names of the translated variables that were fused into the call, in order.
    results
        The variable that each output replaces.
    """

    variables: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(frozen=True)
class LoweredEntry:
    """An entry whose calls are all ``call_tir``.

    Attributes
    ----------
    main
        The Relax function.
    functions, unfused
        PrimFuncs by name, after and before fusion.
    fused
        Relax functions by the name of the PrimFunc made from them.
    variants
        GPU functions by the name of the PrimFunc they replace.
    provenance
        One per ``call_tir`` of `main`, in order.
    contractions
        Variables that went into a transposed product, by the variable of the product.
    """

    main: Any
    functions: dict[str, Any]
    unfused: dict[str, Any]
    fused: dict[str, Any]
    variants: dict[str, Any]
    provenance: tuple[CallProvenance, ...]
    contractions: dict[str, tuple[str, ...]] = field(default_factory=dict)


def lower(module: Any, entry: str, state: Collection[int] = ()) -> LoweredEntry:
    """Lower a module whose function ``main`` is the entry.

    Parameters
    ----------
    state
        Which of its results are state.

    Raises
    ------
    UnsupportedOperatorError
        If TVM cannot lower the module; the message ends with TVM's.
    """
    with tvm.target.Target("llvm"):
        try:
            module, variants, contractions = _legalize(module)
            module = copy_unwritten_outputs(module, state)
            module, views = views_to_operators(module)
            numbered, names = _number_calls(module)
            numbered = _fuse(numbered, views)
            fused = _fuse(module, views)
            lowered = transform.FuseTIR()(fused)
        except Exception as error:  # TVM raises errors of many classes, from C++ and Python
            raise UnsupportedOperatorError(
                f"{entry!r} cannot be lowered to operators: {_last_line(error)}"
            ) from error
    provenance = _provenance(numbered, names)
    calls = [_callee(binding.value) for binding in bindings(lowered[ENTRY]) if _is_call(binding)]
    before = [_callee(binding.value) for binding in bindings(fused[ENTRY]) if _is_call(binding)]
    if calls != before or len(calls) != len(provenance):
        raise UnsupportedOperatorError(
            f"{entry!r}: fusion reordered the calls, so their origins are unknown: "
            f"{len(before)} calls before, {len(calls)} after"
        )
    return LoweredEntry(
        main=lowered[ENTRY],
        functions=_functions(lowered, tirx.PrimFunc),
        unfused=_functions(fused, tirx.PrimFunc),
        fused={name: f for name, f in _functions(fused, relax.Function).items() if name != ENTRY},
        variants=variants,
        provenance=tuple(provenance),
        contractions=contractions,
    )


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _functions(module: Any, kind: type) -> dict[str, Any]:
    return {
        variable.name_hint: function
        for variable, function in module.functions_items()
        if isinstance(function, kind)
    }


def _legalize(module: Any) -> tuple[Any, dict[str, Any], dict[str, tuple[str, ...]]]:
    first: Sequence[Any] = (
        transform.DecomposeOpsForInference(),
        transform.CanonicalizeBindings(),
        fold_empty_tensors,
        pow_to_multiply,
        sink_reshapes,
        order_extents,
        transform.DeadCodeElimination([ENTRY]),
    )
    for step in first:
        module = step(module)
    module, contractions = fuse_transposed_products(module)
    module, variants = dispatch_scans(module)
    passes: Sequence[Any] = (
        DispatchSampling(),
        DispatchSortScan(),
        transform.LegalizeOps(),
        begin_at_infinity,
        transform.RewriteDataflowReshape(),
        transform.AnnotateTIROpPattern(),
        fold_constants,
        transform.DeadCodeElimination([ENTRY]),
    )
    for step in passes:
        module = step(module)
    return module, variants, contractions


def _fuse(module: Any, views: frozenset[str]) -> Any:
    module = fuse_producers(transform.FuseOps()(module), views)
    return transform.DeadCodeElimination([ENTRY])(operators_to_views(module, views))


def _number_calls(module: Any) -> tuple[Any, list[str]]:
    """Put a number on every ``call_tir`` and return the variables' names in that order."""
    number = _Number(module)
    return with_main(module, number.visit_expr(module[ENTRY])), number.names


def _provenance(numbered: Any, names: list[str]) -> list[CallProvenance]:
    functions = _functions(numbered, relax.Function)
    found = []
    for binding in bindings(numbered[ENTRY]):
        if not _is_call(binding):
            continue
        if is_tir_call(binding.value):
            name = names[_number_of(binding.value)]
            found.append(CallProvenance((name,), (name,)))
            continue
        function = functions[binding.value.op.name_hint]
        by_variable = {
            inner.var: names[_number_of(inner.value)]
            for inner in bindings(function)
            if is_tir_call(inner.value)
        }
        output = function.body.body
        made_by = {inner.var: inner.value for inner in bindings(function)}
        made = made_by.get(output)
        outputs = list(made.fields) if isinstance(made, relax.Tuple) else [output]
        whole = tuple(by_variable[_whole(each, made_by)] for each in outputs)
        found.append(CallProvenance(tuple(by_variable.values()), whole))
    return found


def _whole(variable: Any, made_by: Mapping[Any, Any]) -> Any:
    """The tuple that a variable is a part of, or the variable itself."""
    while isinstance(part := made_by.get(variable), relax.TupleGetItem):
        variable = part.tuple_value
    return variable


def _is_call(binding: Any) -> bool:
    value = binding.value
    fused = isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.GlobalVar)
    return fused or is_tir_call(value)


def _callee(value: Any) -> str:
    return str((value.args[0] if is_tir_call(value) else value.op).name_hint)


def _number_of(call: Any) -> int:
    return int(call.attrs[_NUMBER])


@mutator
class _Number(PyExprMutator):  # type: ignore[misc]
    """Gives every ``call_tir`` a number."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.names: list[str] = []

    def visit_var_binding_(self, binding: Any) -> None:
        """TVM's hook."""
        value = binding.value
        if is_tir_call(value):
            attributes = {_NUMBER: len(self.names)}
            self.names.append(binding.var.name)
            call = tvm.ir.Call(value.op, value.args, attributes, value.ty_args)
            binding = relax.VarBinding(binding.var, call)
        super().visit_var_binding_(binding)
