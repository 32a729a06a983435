"""Tensors whose elements WGSL cannot store: bool, 8- and 16-bit integers, 64-bit integers.

WGSL's storage has 32-bit words (and 16-bit floats). Such a tensor is bound as an array of words,
and small functions in the module's text read and write its elements:

- bool, int8, uint8, int16 and uint16 (which bfloat16 is made of) are cut out of their word. A word
  is shared by the threads that write its elements, so it is written with two atomic operations that
  leave the others as they are.
- int64 is two words: one is read, as :mod:`.proof` says, and both are written, the upper one with
  the sign. Every value that is written was proven to fit 32 bits.

In shared and local memory all of them are 32-bit integers. Arithmetic on narrow integers is done in
32 bits and cut to the narrow type wherever it could have left its range.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import PointerType, PrimType

from tapml_targets.codegen.expression import call_name
from tapml_targets.errors import CompileError
from tapml_targets.webgpu.codegen.proof import LOW

_NARROW: Final = {"int8": (8, "int32"), "uint8": (8, "uint32"), "int16": (16, "int32"),
                  "uint16": (16, "uint32")}  # fmt: skip
_STORED: Final = frozenset({*_NARROW, "bool", "int64"})
_NATIVE: Final = frozenset({"float16", "float32", "int32", "uint32"})
_WGSL: Final = {"int32": "i32", "uint32": "u32"}
# Operations on narrow integers whose result may have left the narrow type's range.
_WRAPS: Final = (tirx.Add, tirx.Sub, tirx.Mul, tirx.LShift)
_STAYS: Final = (
    tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max, tirx.RShift,
    tirx.BitwiseAnd, tirx.BitwiseOr, tirx.BitwiseXor,
)  # fmt: skip


@dataclass
class StoredElements:
    """The functions that a module's text needs for its tensors.

    Attributes
    ----------
    elements
        Per pointer that is bound as words, the dtype of its elements.
    modes
        How 64-bit elements are read, by pointer.
    written
        The pointers among them that are written.
    """

    elements: dict[str, str]
    modes: Mapping[str, str]
    written: set[str] = field(default_factory=set)

    def apply(self, text: str) -> str:
        """The module's text with its bindings of words and the functions that access them."""
        functions = []
        for pointer, element in self.elements.items():
            pattern = re.compile(
                rf"var<storage, read(?:_write)?> {re.escape(pointer)} : array<u32>;"
            )
            atomic = pointer in self.written and element != "int64"
            access = "read_write" if pointer in self.written else "read"
            word = "atomic<u32>" if atomic else "u32"
            binding = f"var<storage, {access}> {pointer} : array<{word}>;"
            text, count = pattern.subn(binding, text)
            if count != 1:
                raise CompileError(
                    f"TVM's WGSL has no binding for {pointer!r} as this tapml knows it"
                )
            if f"read_{pointer}(" in text:
                functions.append(
                    read_function(pointer, element, self.modes.get(pointer, LOW), atomic=atomic)
                )
            if pointer in self.written:
                functions.append(write_function(pointer, element))
        return "\n".join([*functions, text]) if functions else text


def store_in_words(function: Any, modes: Mapping[str, str]) -> tuple[Any, StoredElements]:
    """A device function whose tensors are all of types that WGSL can store.

    Parameters
    ----------
    function
        The device PrimFunc.
    modes
        What :func:`~tapml_targets.webgpu.codegen.proof.prove_narrow` says of its 64-bit tensors.

    Raises
    ------
    CompileError
        If a tensor has elements of another type, or is read several elements at a time.
    """
    pointers = [p for p in function.params if isinstance(p.ty, PointerType)]
    elements = {str(p.name): str(p.ty.element_type) for p in pointers}
    for name, element in elements.items():
        if element not in _STORED | _NATIVE:
            raise CompileError(
                f"{name!r} has elements of type {element}, which WGSL cannot compute"
            )
    stored = StoredElements({n: e for n, e in elements.items() if e in _STORED}, modes)
    rewrite = _Rewrite(stored)
    if not stored.elements and not rewrite.concerns(function.body):
        return function, stored
    return rewrite.function(function), stored


class _Rewrite:
    def __init__(self, stored: StoredElements) -> None:
        self._stored = stored
        self._pointers: dict[Any, str] = {}
        self._variables: dict[Any, Any] = {}
        self._kept: dict[Any, str] = {}

    def concerns(self, body: Any) -> bool:
        """Whether anything in `body` has a type that is rewritten."""
        found = False

        def look(node: Any) -> None:
            nonlocal found
            if tirx.buffer.is_buffer_var(node):
                found = found or str(node.dtype) in _STORED
            else:
                found = found or str(node.ty) in _NARROW

        tvm_ffi.structural_walk(body, [((tvm.ir.Var, tirx.Cast), look)])
        return found

    def function(self, function: Any) -> Any:
        """The function with every such type replaced."""

        def declare(statement: Any) -> None:
            name = getattr(statement.data, "name", None)
            if name in self._stored.elements:
                self._pointers[statement.buffer] = str(name)

        tvm_ffi.structural_walk(function.body, [(tirx.DeclBuffer, declare)])
        return tvm_ffi.structural_map(
            function,
            [
                (tvm.ir.Var, self._variable),
                (tirx.IntImm, self._constant),
                (tirx.Cast, self._cast),
                (_WRAPS, lambda node: self._binary(node, wraps=True)),
                (_STAYS, lambda node: self._binary(node, wraps=False)),
                (tirx.Select, self._select),
                (tvm.ir.TensorLoad, self._load),
                (tvm.ir.Call, self._call),
                (tirx.BufferStore, self._store),
                (tirx.DeclBuffer, self._declaration),
            ],
        )

    def _variable(self, variable: Any) -> Any:
        if variable in self._variables:
            return self._variables[variable]
        if isinstance(variable.ty, PointerType):
            if str(variable.name) not in self._stored.elements:
                return variable
            kind = PointerType(PrimType("uint32"), variable.ty.storage_scope)
            new = tvm.ir.Var(str(variable.name), kind)
        elif tirx.buffer.is_buffer_var(variable):
            element = str(variable.dtype)
            if variable in self._pointers or element not in _STORED:
                return variable
            word = _NARROW[element][1] if element in _NARROW else "int32"
            new = tirx.decl_buffer(variable.shape, word, str(variable.name), scope=variable.scope())
            self._kept[new] = element
        elif str(variable.ty) in _NARROW:
            new = tirx.Var(str(variable.name), _NARROW[str(variable.ty)][1])
        else:
            return variable
        self._variables[variable] = new
        return new

    def _constant(self, constant: Any) -> Any:
        kind = str(constant.ty)
        if kind not in _NARROW:
            return constant
        return tirx.IntImm(_NARROW[kind][1], int(constant.value))

    def _cast(self, cast: Any) -> Any:
        kind = str(cast.ty)
        if kind not in _NARROW:
            return cast
        return _wrapped(tirx.Cast(_NARROW[kind][1], cast.value), kind)

    def _binary(self, node: Any, *, wraps: bool) -> Any:
        kind = str(node.ty)
        if kind not in _NARROW:
            return node
        wide = type(node)(node.a, node.b)
        return _wrapped(wide, kind) if wraps else wide

    def _select(self, node: Any) -> Any:
        if str(node.ty) not in _NARROW:
            return node
        return tirx.Select(node.condition, node.true_value, node.false_value)

    def _call(self, call: Any) -> Any:
        if str(call.ty) not in _NARROW:
            return call
        if call_name(call) == "if_then_else":
            return tirx.if_then_else(*call.args)
        raise CompileError(f"WGSL has no 8- or 16-bit integers to compute `{str(call)[:120]}` with")

    def _load(self, load: Any) -> Any:
        if load.source in self._pointers:
            element = str(load.ty)
            pointer = self._pointers[load.source]
            if element != self._stored.elements[pointer]:
                raise CompileError(
                    f"{pointer!r} is read {element} at a time, WGSL reads one element"
                )
            word = _NARROW[element][1] if element in _NARROW else element
            result = "int32" if element == "int64" else word
            index = tirx.Cast("int32", load.indices[0])
            read = tirx.call_pure_extern(result, f"read_{pointer}", index)
            return tirx.Cast("int64", read) if element == "int64" else read
        element = self._kept.get(load.source, "")
        if not element:
            return load
        value = load.source[tuple(load.indices)]
        if element == "bool":
            return tirx.NE(value, tirx.IntImm("int32", 0))
        return tirx.Cast("int64", value) if element == "int64" else value

    def _store(self, store: Any) -> Any:
        if store.buffer in self._pointers:
            pointer = self._pointers[store.buffer]
            element = self._stored.elements[pointer]
            self._stored.written.add(pointer)
            value = tirx.Cast("int32", store.value) if element == "int64" else store.value
            if int(getattr(store.value.ty, "lanes", 1)) != 1:
                raise CompileError(f"{pointer!r} is written several elements at a time")
            index = tirx.Cast("int32", store.indices[0])
            return tirx.Evaluate(tirx.call_extern("int32", f"write_{pointer}", index, value))
        element = self._kept.get(store.buffer, "")
        if element in ("bool", "int64"):
            value = tirx.Cast("int32", store.value)
            return tirx.BufferStore(store.buffer, value, store.indices)
        return store

    def _declaration(self, statement: Any) -> Any:
        # The functions of the text name the pointer; nothing else may.
        return (
            tirx.Evaluate(tirx.IntImm("int32", 0))
            if statement.buffer in self._pointers
            else (statement)
        )


def _wrapped(value: Any, kind: str) -> Any:
    """`value`, of 32 bits, with what `kind` cannot hold cut off."""
    bits, wide = _NARROW[kind]
    if wide == "uint32":
        return tirx.BitwiseAnd(value, tirx.IntImm(wide, (1 << bits) - 1))
    shift = tirx.IntImm(wide, 32 - bits)
    return tirx.RShift(tirx.LShift(value, shift), shift)


def read_function(pointer: str, element: str, mode: str = LOW, *, atomic: bool = False) -> str:
    """The function ``read_<pointer>`` of WGSL, which reads one element out of an array of words."""
    if element == "int64":
        return _read_wide(pointer, mode)
    bits, per_word, shift = _layout(element)
    word = f"{pointer}[u32(i) >> {shift}u]"
    word = f"atomicLoad(&{word})" if atomic else word
    offset = f"(u32(i) & {per_word - 1}u) * {bits}u"
    cut = f"extractBits({word}, {offset}, {bits}u)"
    if element == "bool":
        return f"fn read_{pointer}(i : i32) -> bool {{ return {cut} != 0u; }}"
    if element.startswith("u"):
        return f"fn read_{pointer}(i : i32) -> u32 {{ return {cut}; }}"
    signed = f"extractBits(bitcast<i32>({word}), {offset}, {bits}u)"
    return f"fn read_{pointer}(i : i32) -> i32 {{ return {signed}; }}"


def _read_wide(pointer: str, mode: str) -> str:
    low = f"bitcast<i32>({pointer}[2u * u32(i)])"
    if mode == LOW:
        return f"fn read_{pointer}(i : i32) -> i32 {{ return {low}; }}"
    return (
        f"fn read_{pointer}(i : i32) -> i32 {{\n"
        f"  let low = {low};\n"
        f"  let high = bitcast<i32>({pointer}[2u * u32(i) + 1u]);\n"
        "  let most = select(2147483647i, -2147483647i - 1i, high < 0i);\n"
        "  return select(most, low, high == (low >> 31u));\n"
        "}"
    )


def write_function(pointer: str, element: str) -> str:
    """The function ``write_<pointer>`` of WGSL; all but int64 take atomic operations."""
    if element == "int64":
        return (
            f"fn write_{pointer}(i : i32, value : i32) {{\n"
            f"  {pointer}[2u * u32(i)] = bitcast<u32>(value);\n"
            f"  {pointer}[2u * u32(i) + 1u] = bitcast<u32>(value >> 31u);\n"
            "}"
        )
    bits, per_word, shift = _layout(element)
    kind = "bool" if element == "bool" else _WGSL[_NARROW[element][1]]
    mask = (1 << bits) - 1
    return (
        f"fn write_{pointer}(i : i32, value : {kind}) {{\n"
        f"  let offset = (u32(i) & {per_word - 1}u) * {bits}u;\n"
        f"  atomicAnd(&{pointer}[u32(i) >> {shift}u], ~({mask}u << offset));\n"
        f"  atomicOr(&{pointer}[u32(i) >> {shift}u], (u32(value) & {mask}u) << offset);\n"
        "}"
    )


def _layout(element: str) -> tuple[int, int, int]:
    """Bits of an element, elements per word, and the shift from one to the other."""
    bits = 8 if element == "bool" else _NARROW[element][0]
    return bits, 32 // bits, 2 if bits == 8 else 1
