"""Reads and rebuilds a Relax function as a list of bindings, for our own passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import tvm
from tvm import relax

ENTRY: Final = "main"


def bindings(function: Any) -> list[Any]:
    """All bindings of a Relax function, in order."""
    return [binding for block in function.body.blocks for binding in block.bindings]


def operation_name(expression: Any) -> str:
    """Name of the operation a Relax expression calls; empty for other expressions."""
    return str(getattr(getattr(expression, "op", None), "name", ""))


def is_tir_call(expression: Any) -> bool:
    """Whether an expression is a ``call_tir``."""
    return operation_name(expression) == "relax.call_tir"


def is_same(first: Any, second: Any) -> bool:
    """Whether two variables or expressions are the same object; never true for None."""
    return first is not None and second is not None and bool(first.same_as(second))


def is_one_dataflow_block(function: Any) -> bool:
    """Whether data dependencies alone determine a function's execution order."""
    blocks = function.body.blocks
    return len(blocks) == 1 and isinstance(blocks[0], relax.DataflowBlock)


def operands(expression: Any) -> list[Any]:
    """The variables an expression reads, tuples flattened, with repetitions."""
    if isinstance(expression, tvm.ir.Call):
        return [each for argument in expression.args for each in operands(argument)]
    if isinstance(expression, relax.Tuple):
        return [each for field in expression.fields for each in operands(field)]
    if isinstance(expression, relax.TupleGetItem):
        return operands(expression.tuple_value)
    return [expression]


def with_bindings(function: Any, changed: Sequence[Any]) -> Any:
    """A one-block function with its bindings replaced."""
    body = relax.SeqExpr([relax.DataflowBlock(changed)], function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def with_main(module: Any, main: Any) -> Any:
    """`module` with its function ``main`` replaced."""
    changed = tvm.IRModule(module.functions, attrs=module.attrs)
    changed.update_func(changed.get_global_var(ENTRY), main)
    return changed


class Uses:
    """Readers of each variable of a Relax function; `made_by` has each variable's value."""

    def __init__(self, function: Any) -> None:
        self.made_by: dict[Any, Any] = {}
        self._readers: dict[Any, list[Any]] = {}
        for binding in bindings(function):
            self.made_by[binding.var] = binding.value
            for operand in operands(binding.value):
                self._readers.setdefault(operand, []).append(binding.var)
        for operand in operands(function.body.body):
            self._readers.setdefault(operand, []).append(None)

    def readers(self, variable: Any) -> list[Any]:
        """The variables computed from a variable, once per read; None stands for a result."""
        return self._readers.get(variable, [])

    def only_reader(self, variable: Any) -> Any:
        """The variable computed from a variable, or None if it is read more than once."""
        readers = self.readers(variable)
        return readers[0] if len(readers) == 1 else None
