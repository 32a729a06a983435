"""Fuses products with a transposed matrix into one operator, and keeps their names."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax import transform
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.transform import fuse_transpose_matmul

from tapml.importing.relax_function import ENTRY, bindings, is_tir_call, operation_name, with_main


def fuse_transposed_products(module: Any) -> tuple[Any, dict[str, tuple[str, ...]]]:
    """FuseTransposeMatmul, with the names restored.

    The pass merges two bindings into one call with a new name. Operands do not change, and equal
    ones keep their order, which identifies each product.
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
    module = _fused(module)
    renamed: dict[int, str] = {}
    contractions: dict[str, tuple[str, ...]] = {}
    for index, binding in enumerate(bindings(module[ENTRY])):
        if not is_tir_call(binding.value):
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
    return with_main(module, rename.visit_expr(module[ENTRY])), contractions


def _fused(module: Any) -> Any:
    """What TVM's pass does, but to products on which it fails.

    Those are of a matrix with itself, and those of a transposed matrix that something else reads.
    """
    output, annotated, accepts = fuse_transpose_matmul._pattern()

    def check(context: Any) -> bool:
        found = context.annotated_expr
        alone = len(context.var_usages[context.value_to_bound_var[found["wT"]]]) == 1
        itself = any(found["x"].same_as(found[each]) for each in ("w", "wT"))
        return bool(accepts(context)) and alone and not itself

    pattern = ("transpose_matmul_fuse", output, annotated, check)
    module = transform.FuseOpsByPattern([pattern], bind_constants=False)(module)
    fuser = fuse_transpose_matmul._TransposeMatmulFuser(module)
    for variable, function in module.functions_items():
        if isinstance(function, relax.Function):
            fuser.builder_.update_func(variable, fuser.visit_expr(function))
    return fuser.builder_.get()


def _variable_key(expression: Any) -> str:
    # A constant has no name; its hash is its address, which passes preserve.
    return str(expression.name) if isinstance(expression, tvm.ir.Var) else f"#{hash(expression)}"


@mutator
class _Rename(PyExprMutator):  # type: ignore[misc]
    """Renames bindings by position."""

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
