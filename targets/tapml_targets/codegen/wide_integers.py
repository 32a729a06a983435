"""64-bit integers as two words, for targets that have 32 bits and where those do not suffice.

Where :mod:`.proof` finds that 32 bits change nothing, they are taken: that costs nothing. Elsewhere
each tensor of 64-bit integers is one of pairs of words here, and what is computed with its elements
calls small functions (:mod:`.wide_texts`). What is proven to fit 32 bits stays as it is, and so do
indices, of which the lower word is all that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import PointerType, PrimType

from tapml_targets.codegen.copies import spell_moves
from tapml_targets.codegen.expression import call_name
from tapml_targets.codegen.proof import prove_narrow
from tapml_targets.codegen.symbol_bounds import LaunchRange
from tapml_targets.codegen.value_proof import ValueProof
from tapml_targets.codegen.value_ranges import ValueRanges
from tapml_targets.codegen.wide_texts import PREFIX, Spelling, wide_texts
from tapml_targets.errors import CompileError

PAIR: Final = "uint32x2"
"""What holds a 64-bit integer: the lower word, then the upper one, as in memory."""

_WIDE: Final = "int64"
_COMPARISONS: Final = frozenset({"EQ", "NE", "LT", "LE", "GT", "GE"})
_RING: Final = frozenset({"Add", "Sub", "Mul"})
_BINARY: Final = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Min": "min", "Max": "max",
    "Div": "quotient", "Mod": "remainder",
    "FloorDiv": "floored_quotient", "FloorMod": "floored_remainder",
    "BitwiseAnd": "and", "BitwiseOr": "or", "BitwiseXor": "xor",
    "LShift": "left", "RShift": "right",
}  # fmt: skip
_CALLS: Final = {
    "shift_left": "left", "shift_right": "right", "bitwise_and": "and", "bitwise_or": "or",
    "bitwise_xor": "xor", "bitwise_not": "not", "abs": "size", "fabs": "size",
}  # fmt: skip
_SIGNED: Final = ("int8", "int16", "int32", "uint8", "uint16")


def with_narrow_integers(
    function: Any, launch: LaunchRange, spelling: Spelling | None
) -> tuple[Any, Mapping[str, tuple[str, str]], Mapping[str, str], str]:
    """A device function whose 64-bit integers may be 32-bit ones, or pairs of them.

    Returns
    -------
    function
        The device PrimFunc.
    moves
        The functions of :func:`~.copies.spell_moves` that it calls.
    modes
        What :func:`~.proof.prove_narrow` says of its tensors.
    text
        The functions of :func:`pair_integers` that it calls.

    Raises
    ------
    CompileError
        If 32 bits are not proven to suffice, and there is no `spelling` or no form in pairs.
    """
    try:
        moved, moves = spell_moves(function)
        return moved, moves, prove_narrow(moved, launch), ""
    except (CompileError, RuntimeError) as error:
        # TVM makes a RuntimeError of what is raised while it walks a function.
        if spelling is None:
            raise CompileError(str(error)) from error
    made, text = pair_integers(function, launch, spelling)
    return made, {}, {}, text


def pair_integers(function: Any, launch: LaunchRange, spelling: Spelling) -> tuple[Any, str]:
    """A device function that computes with 64-bit integers as pairs of words.

    Parameters
    ----------
    function
        The device PrimFunc before code generation.
    launch
        What its scalars and grid can be.
    spelling
        The language of the kernel.

    Returns
    -------
    function
        The device PrimFunc. Its 64-bit integers that are left are proven to fit 32 bits.
    text
        The functions that it calls now.

    Raises
    ------
    CompileError
        If a part of it has no form in pairs.
    """
    pairs = _Pairs(function, launch)
    body = pairs.statement(function.body)
    params = [pairs.pointers.get(each, each) for each in function.params]
    made = tirx.PrimFunc(params, body, function.ret_type, attrs=function.attrs)
    return made, wide_texts(pairs.called, spelling)


class _Pairs:
    """Rebuilds a function, and remembers the helper functions that it calls."""

    def __init__(self, function: Any, launch: LaunchRange) -> None:
        self.called: set[str] = set()
        self.pointers = {
            each: tvm.ir.Var(str(each.name), PointerType(PrimType(PAIR), each.ty.storage_scope))
            for each in function.params
            if isinstance(each.ty, PointerType) and str(each.ty.element_type) == _WIDE
        }
        self._ranges = ValueRanges(function, launch, {})
        self._proof = ValueProof(self._ranges)
        self._buffers: dict[Any, Any] = {}
        self._variables: dict[Any, Any] = {}

    def statement(self, statement: Any) -> Any:  # noqa: PLR0911 - one return for each kind
        """One statement and what is in it."""
        match type(statement).__name__:
            case "SeqStmt":
                return tirx.SeqStmt([self.statement(each) for each in statement.seq])
            case "AttrStmt":
                self._ranges.bind_threads(statement)
                body = self.statement(statement.body)
                return tirx.AttrStmt(statement.node, statement.attr_key, statement.value, body)
            case "For":
                return self._loop(statement)
            case "While":
                condition = self._any(statement.condition)
                return tirx.While(condition, self.statement(statement.body))
            case "IfThenElse":
                parts = (statement.then_case, statement.else_case)
                branches = [None if each is None else self.statement(each) for each in parts]
                return tirx.IfThenElse(self._any(statement.condition), *branches)
            case "Bind":
                return self._bind(statement)
            case "BufferStore":
                buffer = self._buffers.get(statement.buffer, statement.buffer)
                value = self._value(statement.value)
                return tirx.BufferStore(buffer, value, [self._any(i) for i in statement.indices])
            case "Evaluate":
                return tirx.Evaluate(self._any(statement.value))
        return self._declaration(statement)

    def _declaration(self, statement: Any) -> Any:
        kind = type(statement).__name__
        if kind not in ("DeclBuffer", "AllocBuffer"):
            raise CompileError(f"this target has no counterpart of {kind}: {statement}")
        buffer = statement.buffer
        if str(buffer.dtype) != _WIDE:
            return statement
        # What is read from it can be anything.
        self._ranges.given.add(buffer)
        data = self.pointers[statement.data] if kind == "DeclBuffer" else None
        scope = "" if data is not None else buffer.scope()
        self._buffers[buffer] = made = tirx.decl_buffer(
            buffer.shape, PAIR, str(buffer.name), data=data, scope=scope
        )
        if data is not None:
            return tirx.DeclBuffer(made, data=data)
        return tirx.AllocBuffer(made, statement.annotations)

    def _loop(self, loop: Any) -> Any:
        for each in (loop.min, loop.extent):
            if not self._is_of_pairs(each):
                # Rounds are counted in 32 bits.
                self._proof.prove(each)
        self._ranges.bind_loop(loop)
        return tirx.For(
            loop.loop_var, self._any(loop.min), self._any(loop.extent), loop.kind,
            self.statement(loop.body), loop.thread_binding, loop.annotations,
        )  # fmt: skip

    def _bind(self, statement: Any) -> Any:
        variable, value = statement.var, statement.value
        if str(variable.ty) == _WIDE and not self._stays(value):
            self._variables[variable] = tirx.Var(str(variable.name), PAIR)
            return tirx.Bind(self._variables[variable], self._pair(value))
        self._ranges.name(variable, value)
        return tirx.Bind(variable, self._any(value))

    def _stays(self, node: Any) -> bool:
        """Whether a value of 64 bits, or a comparison of two, is right in 32."""
        if self._is_of_pairs(node):
            return False
        try:
            self._proof.prove(node)
            if str(node.ty) == _WIDE:
                self._proof.require(node)
        except CompileError:
            return False
        return True

    def _is_of_pairs(self, node: Any) -> bool:
        found = False

        def look(each: Any) -> None:
            nonlocal found
            wide = isinstance(each, tvm.ir.TensorLoad) and str(each.ty) == _WIDE
            found = found or wide or (isinstance(each, tvm.ir.Var) and each in self._variables)

        tvm_ffi.structural_walk(node, [((tvm.ir.TensorLoad, tvm.ir.Var), look)])
        return found

    def _call(self, kind: str, name: str, *arguments: Any) -> Any:
        self.called.add(name)
        return tirx.call_pure_extern(kind, PREFIX + name, *arguments)

    def _low(self, pair: Any) -> Any:
        return self._call("int32", "low", pair)

    def _value(self, node: Any) -> Any:
        return self._pair(node) if str(node.ty) == _WIDE else self._any(node)

    def _any(self, node: Any) -> Any:
        """`node` in its own type: one of 64 bits is an index, right in its lower word."""
        name, kind = type(node).__name__, str(node.ty)
        if name in _COMPARISONS and str(node.a.ty) == _WIDE:
            return node if self._stays(node) else self._compared(name, node)
        if name == "Cast" and str(node.value.ty) == _WIDE:
            return node if self._stays(node.value) else self._from_pair(node)
        if kind == _WIDE:
            if not self._is_of_pairs(node):
                self._proof.prove(node, exact=False)
                return node
            if name not in _RING:
                return tirx.Cast(_WIDE, self._low(self._pair(node)))
        return self._rebuilt(node, self._any)

    def _rebuilt(self, node: Any, part: Callable[[Any], Any]) -> Any:
        match type(node).__name__:
            case "TensorLoad":
                buffer = self._buffers.get(node.source, node.source)
                return buffer[tuple(self._any(index) for index in node.indices)]
            case "Cast":
                return tirx.Cast(str(node.ty), self._any(node.value))
            case "Not":
                return tirx.Not(self._any(node.a))
            case "Select":
                branches = part(node.true_value), part(node.false_value)
                return tirx.Select(self._any(node.condition), *branches)
            case "Let":
                return self._let(node, part)
            case "Call":
                return self._called(node, part)
        if isinstance(getattr(node, "b", None), tvm.ir.Expr):
            return type(node)(part(node.a), part(node.b))
        return node

    def _let(self, node: Any, part: Callable[[Any], Any]) -> Any:
        if str(node.var.ty) == _WIDE and not self._stays(node.value):
            self._variables[node.var] = variable = tirx.Var(str(node.var.name), PAIR)
            return tirx.Let(variable, self._pair(node.value), part(node.body))
        self._ranges.name(node.var, node.value)
        return tirx.Let(node.var, self._any(node.value), part(node.body))

    def _called(self, node: Any, part: Callable[[Any], Any]) -> Any:
        if call_name(node) == "if_then_else":
            condition, *branches = node.args
            return tirx.if_then_else(self._any(condition), *map(part, branches))
        arguments = [
            self._value(each) if isinstance(each, tvm.ir.Expr) else each for each in node.args
        ]
        kind = PAIR if str(node.ty) == _WIDE else str(node.ty)
        return tirx.call_intrin(kind, node.op, *arguments)

    def _compared(self, name: str, node: Any) -> Any:
        a, b = self._pair(node.a), self._pair(node.b)
        if name in ("EQ", "NE"):
            same = self._call("bool", "same", a, b)
            return same if name == "EQ" else tirx.Not(same)
        if name in ("GT", "LE"):
            a, b = b, a
        less = self._call("bool", "less", a, b)
        return less if name in ("LT", "GT") else tirx.Not(less)

    def _from_pair(self, node: Any) -> Any:
        pair, kind = self._pair(node.value), str(node.ty)
        if kind == "bool":
            return self._call("bool", "true", pair)
        if kind.startswith(("int", "uint")) and "64" not in kind:
            return tirx.Cast(kind, self._low(pair)) if kind != "int32" else self._low(pair)
        if kind in ("float32", "float16"):
            found = self._call("float32", "to_float", pair)
            return found if kind == "float32" else tirx.Cast(kind, found)
        raise CompileError(f"this target has no {kind} to make of a 64-bit integer: {node}")

    def _pair(self, node: Any) -> Any:
        """A value of 64 bits as a pair."""
        name = type(node).__name__
        if name == "IntImm":
            value = int(node.value)
            words = (tirx.IntImm("uint32", (value >> at) & 0xFFFFFFFF) for at in (0, 32))
            return self._call(PAIR, "of_words", *words)
        if name == "Var" and node in self._variables:
            return self._variables[node]
        if self._stays(node):
            return self._call(PAIR, "of_int", tirx.Cast("int32", node))
        if name in _BINARY:
            return self._call(PAIR, _BINARY[name], self._pair(node.a), self._pair(node.b))
        if name == "Cast":
            return self._to_pair(node)
        if name == "Call" and call_name(node) in _CALLS:
            return self._call(PAIR, _CALLS[call_name(node)], *map(self._pair, node.args))
        known = name in ("TensorLoad", "Select", "Let") or (
            name == "Call" and (call_name(node) == "if_then_else" or "shuffle" in call_name(node))
        )
        if not known:
            raise CompileError(
                f"the 64-bit integer `{str(node)[:120]}` has no form in two words of 32 bits: keep "
                "the operator on the source"
            )
        return self._rebuilt(node, self._pair)

    def _to_pair(self, node: Any) -> Any:
        value, given = self._any(node.value), str(node.value.ty)
        if given in _SIGNED:
            value = value if given == "int32" else tirx.Cast("int32", value)
            return self._call(PAIR, "of_int", value)
        if given in ("bool", "uint32"):
            value = value if given == "uint32" else tirx.Cast("uint32", value)
            return self._call(PAIR, "of_word", value)
        if given in ("float32", "float16"):
            value = value if given == "float32" else tirx.Cast("float32", value)
            return self._call(PAIR, "of_float", value)
        raise CompileError(f"this target makes no 64-bit integer of {given}: {node}")
