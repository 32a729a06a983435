"""Relax to fused PrimFuncs: the passes, and how provenance comes through them.

Run once, under the CPU target: the fused graph is the same for every target, only schedules and
code differ. Variable names come through all passes up to FuseOps, except through
FuseTransposeMatmul, after which they are put back. FuseOps renames and merges equal groups, so the
module goes through it twice: once as it is, and once with a number on every ``call_tir``, which
keeps each group apart and says what went into it. Both runs form the same groups in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax import transform
from tvm.relax.backend import DispatchSampling, DispatchSortScan
from tvm.relax.expr_functor import PyExprMutator, mutator

from tapml.graph.scans import dispatch_scans
from tapml_targets.errors import UnsupportedOperatorError

ENTRY = "main"
_NUMBER = "tapml.number"


@dataclass(frozen=True)
class CallProvenance:
    """What one call of the lowered graph was made of.

    Attributes
    ----------
    variables
        Names that the variables of its parts had in the translated module, in order; the parts of
        a fused call, one name otherwise.
    results
        The variable each output stood for.
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
    functions
        PrimFuncs by name.
    unfused
        PrimFuncs as they were before they were fused, by name.
    fused
        Relax functions by the name of the PrimFunc that was made from them.
    variants
        GPU functions by the name of the PrimFunc they stand in for.
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


def lower(module: Any, entry: str) -> LoweredEntry:
    """Run the passes on a module whose function ``main`` is the entry.

    Raises
    ------
    UnsupportedOperatorError
        If TVM cannot lower the module; the message holds what it said.
    """
    with tvm.target.Target("llvm"):
        try:
            module, variants, contractions = _legalize(module)
            numbered, names = _number_calls(module)
            numbered = transform.FuseOps()(numbered)
            fused = transform.FuseOps()(module)
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
            f"{entry!r}: fusion changed the order of the calls, so their origins are lost; "
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


def bindings(function: Any) -> list[Any]:
    """All bindings of a Relax function, in order."""
    return [binding for block in function.body.blocks for binding in block.bindings]


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
    for step in (transform.DecomposeOpsForInference(), transform.CanonicalizeBindings()):
        module = step(module)
    module, contractions = _fuse_transposed_products(module)
    module, variants = dispatch_scans(module)
    passes: Sequence[Any] = (
        DispatchSampling(),
        DispatchSortScan(),
        transform.LegalizeOps(),
        transform.RewriteDataflowReshape(),
        transform.AnnotateTIROpPattern(),
        transform.FoldConstant(),
        transform.DeadCodeElimination([ENTRY]),
    )
    for step in passes:
        module = step(module)
    return module, variants, contractions


def _fuse_transposed_products(module: Any) -> tuple[Any, dict[str, tuple[str, ...]]]:
    """FuseTransposeMatmul, with the names put back.

    The pass makes one call of two bindings and gives it a new name. The operands are the same
    before and after, and equal ones stay in order, which is how each product is found again.
    """
    made_by: dict[Any, Any] = {}
    products: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for binding in bindings(module[ENTRY]):
        made_by[binding.var] = binding.value
        if operation_name(binding.value) == "relax.matmul":
            left, right = binding.value.args
            transposed: Any = made_by.get(right)
            if operation_name(transposed) == "relax.permute_dims":
                key = (_variable_key(left), _variable_key(transposed.args[0]))
                products.setdefault(key, []).append((binding.var.name, right.name))
    module = transform.FuseTransposeMatmul()(module)
    renamed: dict[int, str] = {}
    contractions: dict[str, tuple[str, ...]] = {}
    for index, binding in enumerate(bindings(module[ENTRY])):
        if not _is_tir_call(binding.value):
            continue
        operands = binding.value.args[1].fields
        if len(operands) != 2:
            continue
        waiting = products.get((_variable_key(operands[0]), _variable_key(operands[1])))
        if waiting:
            product, transposed_name = waiting.pop(0)
            renamed[index] = product
            contractions[product] = (transposed_name, product)
    rename = _Rename(module, renamed)
    return _with_main(module, rename.visit_expr(module[ENTRY])), contractions


def _variable_key(expression: Any) -> str:
    # A constant has no name; its hash is its place in memory, which passes leave as it is.
    return str(expression.name) if isinstance(expression, tvm.ir.Var) else f"#{hash(expression)}"


def _number_calls(module: Any) -> tuple[Any, list[str]]:
    """Put a number on every ``call_tir`` and return the variables' names in that order."""
    number = _Number(module)
    return _with_main(module, number.visit_expr(module[ENTRY])), number.names


def _with_main(module: Any, main: Any) -> Any:
    changed = tvm.IRModule(module.functions, attrs=module.attrs)
    changed.update_func(changed.get_global_var(ENTRY), main)
    return changed


def _provenance(numbered: Any, names: list[str]) -> list[CallProvenance]:
    functions = _functions(numbered, relax.Function)
    found = []
    for binding in bindings(numbered[ENTRY]):
        if not _is_call(binding):
            continue
        if _is_tir_call(binding.value):
            name = names[_number_of(binding.value)]
            found.append(CallProvenance((name,), (name,)))
            continue
        function = functions[binding.value.op.name_hint]
        by_variable = {
            inner.var: names[_number_of(inner.value)]
            for inner in bindings(function)
            if _is_tir_call(inner.value)
        }
        output = function.body.body
        made_by = {inner.var: inner.value for inner in bindings(function)}
        outputs = [output] if output in by_variable else list(made_by[output].fields)
        found.append(
            CallProvenance(
                tuple(by_variable.values()), tuple(by_variable[each] for each in outputs)
            )
        )
    return found


def operation_name(expression: Any) -> str:
    """Name of the operation a Relax expression calls; empty for other expressions."""
    return str(getattr(getattr(expression, "op", None), "name", ""))


def _is_tir_call(expression: Any) -> bool:
    return operation_name(expression) == "relax.call_tir"


def _is_call(binding: Any) -> bool:
    value = binding.value
    fused = isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.GlobalVar)
    return fused or _is_tir_call(value)


def _callee(value: Any) -> str:
    return str((value.args[0] if _is_tir_call(value) else value.op).name_hint)


def _number_of(call: Any) -> int:
    return int(call.attrs[_NUMBER])


@mutator
class _Rename(PyExprMutator):  # type: ignore[misc]
    """Gives bindings, found by their position, another name."""

    def __init__(self, module: Any, names: dict[int, str]) -> None:
        super().__init__(module)
        self._names = names
        self._index = 0

    def visit_var_binding_(self, binding: Any) -> None:
        """TVM's hook."""
        name = self._names.get(self._index)
        self._index += 1
        if name is None:
            super().visit_var_binding_(binding)
            return
        renamed = type(binding.var)(name, binding.var.ty)
        value = self.visit_expr(binding.value)
        self.builder_.emit_normalized(relax.VarBinding(renamed, value))
        self.set_var_remap(binding.var, renamed)


@mutator
class _Number(PyExprMutator):  # type: ignore[misc]
    """Gives every ``call_tir`` a number of its own."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.names: list[str] = []

    def visit_var_binding_(self, binding: Any) -> None:
        """TVM's hook."""
        value = binding.value
        if _is_tir_call(value):
            attributes = {_NUMBER: len(self.names)}
            self.names.append(binding.var.name)
            call = tvm.ir.Call(value.op, value.args, attributes, value.ty_args)
            binding = relax.VarBinding(binding.var, call)
        super().visit_var_binding_(binding)
