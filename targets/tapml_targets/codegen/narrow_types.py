"""A device function's types, brought down to those of a target with 32-bit integers alone.

- An integer of 64 bits that is a value (not an index, which TVM narrows itself) becomes one of 32.
  That this is right has been proven before (:mod:`.proof`).
- Integers of 8 and 16 bits are computed in 32, and cut to what they can hold wherever an operation
  may have left their range.
- A tensor of such integers, or of bool, becomes one of 32-bit integers, element for element. How
  its elements lie in memory is the printer's business, as long as it is a tensor that the kernel is
  given; shared and local memory simply has words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import tvm
from tvm import tirx
from tvm.ir import PointerType, PrimType

from tapml_targets.codegen.expression import call_name
from tapml_targets.errors import CompileError

WORDS: Final = {
    "bool": "int32",
    "int8": "int32",
    "uint8": "uint32",
    "int16": "int32",
    "uint16": "uint32",
    "int64": "int32",
}
"""What a tensor's elements are in a kernel, by what they are in memory."""

BITS: Final = {"bool": 8, "int8": 8, "uint8": 8, "int16": 16, "uint16": 16}
"""Of elements that share a word."""


def word_layout(element: str) -> tuple[int, int, int]:
    """Bits of an element, elements per word, and the shift from the index of one to the other."""
    bits = BITS[element]
    return bits, 32 // bits, 2 if bits == 8 else 1


_WIDE: Final = "int64"
_BITS: Final = {"int8": 8, "uint8": 8, "int16": 16, "uint16": 16}
_WRAPS: Final = frozenset({"Add", "Sub", "Mul", "LShift"})
_BINARY: Final = _WRAPS | {
    "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max", "RShift", "BitwiseAnd", "BitwiseOr",
    "BitwiseXor", "EQ", "NE", "LT", "LE", "GT", "GE", "And", "Or",
}  # fmt: skip


def narrow_types(
    function: Any, native: frozenset[str], language: str
) -> tuple[Any, dict[str, str]]:
    """The device function with the types of a language only.

    Parameters
    ----------
    function
        The device PrimFunc.
    native
        What the language computes in as it is. Where ``int64`` is among these, integers of 64 bits
        stay.
    language
        Its name, for errors.

    Returns
    -------
    function
        The device PrimFunc.
    elements
        What the elements of its tensors are in memory, by the name of the pointer, where that is
        something else than what they are in the function.

    Raises
    ------
    CompileError
        If a tensor's elements are of a type that the language cannot compute at all.
    """
    elements = check_elements(function, native, language)
    pointers = [p for p in function.params if isinstance(p.ty, PointerType)]
    words = {kind: word for kind, word in WORDS.items() if kind not in native}
    rewrite = _Rewrite(pointers, words, language)
    body = rewrite.statement(function.body)
    if not body.same_as(function.body):
        params = [rewrite.pointers.get(p, p) for p in function.params]
        function = tirx.PrimFunc(params, body, function.ret_type, attrs=function.attrs)
    return function, {name: e for name, e in elements.items() if e in words}


def check_elements(function: Any, native: frozenset[str], language: str) -> dict[str, str]:
    """What the elements of a device function's tensors are, by the name of the pointer.

    Raises
    ------
    CompileError
        If the language has neither them nor words for them.
    """
    pointers = [p for p in function.params if isinstance(p.ty, PointerType)]
    elements = {str(p.name): str(p.ty.element_type) for p in pointers}
    for name, element in elements.items():
        if element not in native and element not in WORDS:
            raise CompileError(
                f"{name!r} has elements of type {element}, which {language} cannot compute"
            )
    return elements


class _Rewrite:
    """Rebuilds what has to change, and leaves the rest as it is."""

    def __init__(self, pointers: Iterable[Any], words: Mapping[str, str], language: str) -> None:
        self._words = words
        self._language = language
        self.pointers = {
            pointer: tvm.ir.Var(
                str(pointer.name),
                PointerType(
                    PrimType(self._words[str(pointer.ty.element_type)]), pointer.ty.storage_scope
                ),
            )
            for pointer in pointers
            if str(pointer.ty.element_type) in self._words
        }
        self._buffers: dict[Any, Any] = {}
        self._variables: dict[Any, Any] = {}

    def statement(self, statement: Any) -> Any:
        """One statement and what is in it."""
        match type(statement).__name__:
            case "SeqStmt":
                parts = [self.statement(each) for each in statement.seq]
                same = all(a.same_as(b) for a, b in zip(parts, statement.seq, strict=True))
                return statement if same else tirx.SeqStmt(parts)
            case "AttrStmt":
                body = self.statement(statement.body)
                if body.same_as(statement.body):
                    return statement
                return tirx.AttrStmt(statement.node, statement.attr_key, statement.value, body)
            case "For":
                body = self.statement(statement.body)
                start, extent = self._index(statement.min), self._index(statement.extent)
                return tirx.For(
                    statement.loop_var, start, extent, statement.kind, body,
                    statement.thread_binding, statement.annotations,
                )  # fmt: skip
            case "While":
                return tirx.While(self._index(statement.condition), self.statement(statement.body))
            case "IfThenElse":
                otherwise = statement.else_case
                return tirx.IfThenElse(
                    self._index(statement.condition),
                    self.statement(statement.then_case),
                    None if otherwise is None else self.statement(otherwise),
                )
        return self._simple(statement)

    def _simple(self, statement: Any) -> Any:
        match type(statement).__name__:
            case "Bind":
                return self._bind(statement)
            case "BufferStore":
                return self._store(statement)
            case "Evaluate":
                value = self._value(statement.value)
                return statement if value.same_as(statement.value) else tirx.Evaluate(value)
            case "DeclBuffer":
                buffer = statement.buffer
                if isinstance(statement.data, tvm.ir.Var) and statement.data in self.pointers:
                    data = self.pointers[statement.data]
                    return tirx.DeclBuffer(self._declared(buffer, data), data=data)
            case "AllocBuffer":
                buffer = statement.buffer
                if str(buffer.dtype) in self._words:
                    return tirx.AllocBuffer(self._declared(buffer, None), statement.annotations)
        return statement

    def _declared(self, buffer: Any, data: Any) -> Any:
        self._buffers[buffer] = tirx.decl_buffer(
            buffer.shape,
            self._words[str(buffer.dtype)],
            str(buffer.name),
            data=data,
            scope="" if data is not None else buffer.scope(),
        )
        return self._buffers[buffer]

    def _bind(self, statement: Any) -> Any:
        kind = str(statement.var.ty)
        if kind not in _BITS:
            # A 64-bit name stays: TVM narrows it with the indices that it stands in.
            value = (self._index if kind == "int64" else self._value)(statement.value)
            same = value.same_as(statement.value)
            return statement if same else tirx.Bind(statement.var, value)
        word = tirx.Var(str(statement.var.name), self._words[kind])
        self._variables[statement.var] = word
        return tirx.Bind(word, self._value(statement.value))

    def _store(self, store: Any) -> Any:
        indices = [self._index(index) for index in store.indices]
        value = self._value(store.value)
        buffer = self._buffers.get(store.buffer, store.buffer)
        if str(value.ty).startswith("bool") and buffer is not store.buffer:
            value = tirx.Cast(str(value.ty).replace("bool", "int32"), value)
        return tirx.BufferStore(buffer, value, indices)

    def _index(self, node: Any) -> Any:
        """`node` in its own type; only what it reads from tensors is changed."""
        if str(node.ty) != "int64":
            return self._value(node)
        return self._rebuilt(node, self._index) if self._buffers else node

    def _value(self, node: Any) -> Any:
        """`node` in 32 bits."""
        return self._rebuilt(node, self._value)

    def _rebuilt(self, node: Any, part: Any) -> Any:
        kind, name = str(node.ty), type(node).__name__
        base, _, lanes = kind.partition("x")
        narrow = part == self._value and _WIDE in self._words
        found = node
        if name == "IntImm":
            if base in _BITS or (base == "int64" and narrow):
                found = tirx.IntImm(self._words[base], int(node.value))
        elif name == "Var":
            if node in self._variables:
                found = self._variables[node]
            elif base == "int64" and narrow:
                found = tirx.Cast("int32", node)
        elif name == "TensorLoad":
            found = self._loaded(node, base, narrow=narrow)
        elif name == "Cast":
            found = self._cast(node, base, lanes, narrow=narrow)
        elif name in _BINARY:
            found = self._binary(node, name, base, narrow=narrow)
        else:
            found = self._other(node, name, base, narrow=narrow)
        return found

    def _part(self, node: Any, *, narrow: bool) -> Any:
        return self._value(node) if narrow else self._index(node)

    def _loaded(self, node: Any, base: str, *, narrow: bool) -> Any:
        indices = [self._index(index) for index in node.indices]
        buffer = self._buffers.get(node.source, node.source)
        same = all(a.same_as(b) for a, b in zip(indices, node.indices, strict=True))
        if buffer is node.source:
            return node if same else buffer[tuple(indices)]
        value = buffer[tuple(indices)]
        if base == "bool":
            return tirx.NE(value, tirx.const(0, value.ty))
        return tirx.Cast("int64", value) if base == "int64" and not narrow else value

    def _cast(self, node: Any, base: str, lanes: str, *, narrow: bool) -> Any:
        value = self._part(node.value, narrow=narrow or str(node.value.ty) != "int64")
        if base in _BITS and base.startswith("uint") and str(node.value.ty).startswith("float"):
            # Of numbers below 0 processors keep the lower bits, shading languages may give 0.
            value = tirx.Cast("int32" + ("x" + lanes if lanes else ""), value)
        target = base if base == "int64" and not narrow else self._words.get(base, base)
        if base == "bool":
            target = base
        kind = target + ("x" + lanes if lanes else "")
        if str(value.ty) == kind:
            return _wrapped(value, base)
        if value.same_as(node.value) and kind == str(node.ty):
            return node
        return _wrapped(tirx.Cast(kind, value), base)

    def _binary(self, node: Any, name: str, base: str, *, narrow: bool) -> Any:
        # What is compared is a value, whatever it is compared for.
        narrow = narrow or base != "int64"
        a, b = self._part(node.a, narrow=narrow), self._part(node.b, narrow=narrow)
        if a.same_as(node.a) and b.same_as(node.b):
            return node
        found = type(node)(a, b)
        return _wrapped(found, base) if name in _WRAPS else found

    def _other(self, node: Any, name: str, base: str, *, narrow: bool) -> Any:
        def part(each: Any) -> Any:
            return self._part(each, narrow=narrow)

        if name == "Not":
            return tirx.Not(self._value(node.a))
        if name == "Select":
            condition = self._value(node.condition)
            return tirx.Select(condition, part(node.true_value), part(node.false_value))
        if name == "Let":
            return tirx.Let(node.var, self._index(node.value), part(node.body))
        if name == "Ramp":
            return tirx.Ramp(part(node.base), part(node.stride), node.lanes)
        if name == "Broadcast":
            return tirx.Broadcast(part(node.value), node.lanes)
        if name == "Call":
            return self._call(node, base, part)
        return node

    def _call(self, node: Any, base: str, part: Any) -> Any:
        if call_name(node) == "if_then_else":
            condition, *branches = node.args
            return tirx.if_then_else(self._value(condition), *map(part, branches))
        if call_name(node) == "reinterpret" and base in _BITS and str(node.args[0].ty) in _BITS:
            return _wrapped(tirx.Cast(self._words[base], self._value(node.args[0])), base)
        if base in _BITS:
            raise CompileError(
                f"{self._language} has no {base} to compute `{str(node)[:120]}` with"
            )
        arguments = [self._value(a) if isinstance(a, tvm.ir.Expr) else a for a in node.args]
        if all(a is b or a.same_as(b) for a, b in zip(arguments, node.args, strict=True)):
            return node
        kind = self._words.get(base, str(node.ty)) if base == "int64" else str(node.ty)
        return tirx.call_intrin(kind, node.op, *arguments)


def _wrapped(value: Any, kind: str) -> Any:
    """`value`, of 32 bits, with what `kind` cannot hold cut off."""
    if kind not in _BITS:
        return value
    word = str(value.ty)
    if kind.startswith("u"):
        return tirx.BitwiseAnd(value, tirx.const((1 << _BITS[kind]) - 1, word))
    shift = tirx.const(32 - _BITS[kind], word)
    return tirx.RShift(tirx.LShift(value, shift), shift)
