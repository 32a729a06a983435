"""64-bit integers that a kernel only moves: both of their words are copied as they are.

What is computed with an element must be proven to fit 32 bits (:mod:`.proof`). A transposition, a
concatenation, a row that is picked compute nothing with it: such a store becomes the call of a
small function that copies two words. Its operands are indices, of which 32 bits are right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import PointerType

from tapml_targets.codegen.expression import call_name

_WIDE: Final = "int64"
_PREFIX: Final = "move_"


def spell_moves(function: Any) -> tuple[Any, Mapping[str, tuple[str, str]]]:
    """A device function whose moves of 64-bit integers are calls.

    Returns
    -------
    function
        The device PrimFunc.
    functions
        The functions it calls now by name, each with the pointers that it writes and reads. They
        take the index of the element to write and of the one to read.
    """
    pointers = {p for p in function.params if isinstance(p.ty, PointerType)}
    given: dict[Any, str] = {}

    def declare(statement: Any) -> None:
        if isinstance(statement.data, tvm.ir.Var) and statement.data in pointers:
            given[statement.buffer] = str(statement.data.name)

    tvm_ffi.structural_walk(function, (tirx.DeclBuffer, declare))
    wide = {buffer: name for buffer, name in given.items() if str(buffer.dtype) == _WIDE}
    functions: dict[str, tuple[str, str]] = {}

    def store(statement: Any) -> Any:
        if statement.buffer not in wide or not _moves(statement.value, wide):
            return statement
        return _spelt(statement, statement.value, wide, functions)

    # An operator's parameters differ in name; what else is given twice is left to the proof.
    if len(set(wide.values())) == len(wide) > 1:
        function = tvm_ffi.structural_map(function, (tirx.BufferStore, store))
    return function, functions


def is_move(call: Any) -> bool:
    """Whether a call copies an element: its operands are indices."""
    return _called(call).startswith(_PREFIX)


def _moves(value: Any, wide: Mapping[Any, str]) -> bool:
    """Whether a value is an element, or one of several by a condition."""
    if isinstance(value, tvm.ir.TensorLoad):
        return value.source in wide and len(value.indices) == 1
    if _is_choice(value):
        _, *branches = _choice(value)
        return any(_moves(branch, wide) for branch in branches)
    return False


def _is_choice(value: Any) -> bool:
    return isinstance(value, tirx.Select) or call_name(value) == "if_then_else"


def _choice(value: Any) -> tuple[Any, Any, Any]:
    if isinstance(value, tirx.Select):
        return value.condition, value.true_value, value.false_value
    condition, chosen, other = value.args
    return condition, chosen, other


def _spelt(
    store: Any, value: Any, wide: Mapping[Any, str], functions: dict[str, tuple[str, str]]
) -> Any:
    if not _moves(value, wide):
        return tirx.BufferStore(store.buffer, value, store.indices)
    if _is_choice(value):
        condition, chosen, other = _choice(value)
        branches = (_spelt(store, each, wide, functions) for each in (chosen, other))
        return tirx.IfThenElse(condition, *branches)
    target, source = wide[store.buffer], wide[value.source]
    # TVM names what a reduction keeps beside its value `NAME.v0`.
    name = re.sub(r"\W", "_", f"{_PREFIX}{target}_{source}")
    functions[name] = target, source
    return tirx.Evaluate(tirx.call_pure_extern("int32", name, store.indices[0], value.indices[0]))


def _called(call: Any) -> str:
    if call_name(call) != "call_pure_extern":
        return ""
    return str(getattr(call.args[0], "value", ""))
