"""A proof that the 64-bit integers of a kernel can be 32-bit ones.

WGSL has no 64-bit integers, and TVM, which counts elements with them, cuts them to 32 bits without
asking. Cutting is right where it changes no result:

- Sums, differences and products may wrap around on the way. What is left of them as an index is
  right, since an element of a binding has an index below 2**31.
- What is compared, divided, shifted to the right, clamped, or made a floating-point number must
  have its true value, so it must lie within 32 bits whatever the shapes are; likewise what is
  written into a tensor of 64-bit integers.

What is read from a tensor of 64-bit integers can be anything. As an index, or cut to 32 bits, its
low word is all that counts. Clamped between or compared with 32-bit values, it is read saturated,
which gives what the true value would have given. Anything else is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import tvm
import tvm_ffi
from tvm import tirx

from tapml_targets.codegen.expression import call_name
from tapml_targets.errors import CompileError
from tapml_targets.webgpu.codegen.symbol_bounds import INT32, LaunchRange, Range
from tapml_targets.webgpu.codegen.value_ranges import ValueRanges

LOW: Final = "low"
SATURATED: Final = "saturated"

_WIDE: Final = "int64"
_RING: Final = frozenset({"Add", "Sub", "Mul"})
_COMPARISONS: Final = frozenset({"EQ", "NE", "LT", "LE", "GT", "GE"})
_CLAMPS: Final = frozenset({"Min", "Max"})
_INTEGERS: Final = ("int", "uint")
_WORD_BITS: Final = 32
# Rounds until the ranges of what a reduction keeps in shared memory stand still.
_ROUNDS: Final = 6


def prove_narrow(function: Any, launch: LaunchRange) -> Mapping[str, str]:
    """Prove that 32 bits do for every integer of a device function.

    Parameters
    ----------
    function
        The device PrimFunc before code generation.
    launch
        What its scalars and grid can be.

    Returns
    -------
    mapping
        How each tensor of 64-bit integers that is read is to be read, :data:`LOW` or
        :data:`SATURATED`, by the name of its pointer.

    Raises
    ------
    CompileError
        If there is no proof; the message names the value and how large it may become.
    """
    if not _has_wide(function):
        return {}
    kept: dict[Any, Range] = {}
    for _ in range(_ROUNDS):
        proof = _Proof(function, launch, dict(kept))
        proof.statement(function.body)
        if proof.kept == kept:
            return proof.modes
        kept = proof.kept
    raise CompileError(
        "a 64-bit integer in shared or local memory grows with every step: its range is not known, "
        "and WGSL has 32 bits; keep the operator on the source"
    )


def _has_wide(function: Any) -> bool:
    found = False

    def look(node: Any) -> None:
        nonlocal found
        kind = node.ty.dtype if tirx.buffer.is_buffer_var(node) else node.ty
        found = found or str(kind) == _WIDE

    tvm_ffi.structural_walk(function, [((tvm.ir.Var, tvm.ir.TensorLoad, tirx.Cast), look)])
    return found


class _Proof:
    """One walk over a function, with what shared and local 64-bit memory is known to hold."""

    def __init__(self, function: Any, launch: LaunchRange, kept: dict[Any, Range]) -> None:
        self._grid = dict(zip("xyz", launch.grid, strict=True))
        self._pointers: dict[Any, str] = {}
        self._ranges = ValueRanges(kept)
        self.modes: dict[str, str] = {}
        scalars = [p for p in function.params if tvm.ir.is_prim_var(p)]
        for variable, (lower, upper) in zip(scalars, launch.scalars, strict=True):
            self._ranges.bind(variable, lower, upper)

    @property
    def kept(self) -> dict[Any, Range]:
        """What shared and local 64-bit memory was seen to be given."""
        return self._ranges.kept

    def statement(self, statement: Any) -> None:
        """Prove one statement and what is in it."""
        match type(statement).__name__:
            case "SeqStmt":
                for each in statement.seq:
                    self.statement(each)
            case "AttrStmt":
                self._threads(statement)
                self.statement(statement.body)
            case "DeclBuffer":
                if isinstance(statement.data, tvm.ir.Var):
                    self._pointers[statement.buffer] = str(statement.data.name)
                    self._ranges.given.add(statement.buffer)
            case "Bind":
                self._value(statement.value, exact=False)
                self._ranges.name(statement.var, statement.value)
            case "For":
                self._loop(statement)
            case "While":
                self._value(statement.condition)
                self.statement(statement.body)
            case "IfThenElse":
                self._value(statement.condition)
                self.statement(statement.then_case)
                if statement.else_case is not None:
                    self.statement(statement.else_case)
            case "BufferStore":
                self._store(statement)
            case "Evaluate":
                self._value(statement.value)
            case "AllocBuffer":
                pass
            case kind:
                raise CompileError(f"WGSL has no counterpart of {kind}: {statement}")

    def _threads(self, statement: Any) -> None:
        if statement.attr_key != "thread_extent":
            return
        tag = str(statement.node.thread_tag)
        known = self._grid.get(tag[-1]) if tag.startswith("blockIdx.") else None
        upper = self._ranges.of(statement.value)[1]
        self._ranges.bind(statement.node.var, 0, max(0, min(upper, known or upper) - 1))

    def _loop(self, loop: Any) -> None:
        self._value(loop.min)
        self._value(loop.extent)
        first, extent = self._ranges.of(loop.min), self._ranges.of(loop.extent)
        self._ranges.bind(loop.loop_var, first[0], max(first[0], first[1] + extent[1] - 1))
        self.statement(loop.body)

    def _store(self, store: Any) -> None:
        for index in store.indices:
            self._value(index, exact=False)
        if str(store.value.ty) != _WIDE:
            self._value(store.value)
            return
        self._value(store.value)
        buffer = store.buffer
        if buffer in self._pointers:
            self._require(store.value, f"is written to {self._pointers[buffer]!r} and")
            return
        lower, upper = self._ranges.of(store.value)
        self._ranges.keep(buffer, lower, upper)
        self._require(store.value, "is kept in shared or local memory and")

    def _value(self, node: Any, *, exact: bool = True) -> None:
        """Prove `node`: its true value where `exact`, or modulo 2**32."""
        wide = str(node.ty) == _WIDE
        kind = type(node).__name__
        if kind == "IntImm":
            if wide:
                self._require(node)
        elif kind == "Var":
            if wide and exact:
                self._require(node)
        elif kind in _RING:
            if wide and exact:
                self._require(node)
            self._value(node.a, exact=not wide)
            self._value(node.b, exact=not wide)
        elif kind == "TensorLoad":
            self._load(node, exact=exact)
        elif kind == "Cast":
            self._cast(node, exact=exact)
        elif kind in _CLAMPS and wide:
            if self._clamped(node) or exact:
                self._require(node)
        elif kind in _COMPARISONS and str(node.a.ty) == _WIDE:
            self._compared(node)
        elif kind == "BitwiseAnd" and wide and _is_mask(node.b):
            self._value(node.a, exact=False)
        elif kind == "Let":
            self._value(node.value, exact=False)
            self._ranges.name(node.var, node.value)
            self._value(node.body, exact=exact)
        else:
            self._parts(node, kind, exact=exact)

    def _shifted(self, node: Any, *, exact: bool) -> None:
        """A shift to the left is a product, as long as 32 bits can be shifted so far."""
        if exact:
            self._require(node)
        self._value(node.a, exact=False)
        self._value(node.b)
        lower, upper = self._ranges.of(node.b)
        if lower < 0 or upper >= _WORD_BITS:
            self._refuse(node.b, "is how far to shift and")

    def _parts(self, node: Any, kind: str, *, exact: bool) -> None:
        if kind == "LShift" and str(node.ty) == _WIDE:
            self._shifted(node, exact=exact)
        elif kind == "Select":
            self._value(node.condition)
            self._value(node.true_value, exact=exact)
            self._value(node.false_value, exact=exact)
        elif kind == "Call" and call_name(node) == "if_then_else":
            condition, true_value, false_value = node.args
            self._value(condition)
            self._value(true_value, exact=exact)
            self._value(false_value, exact=exact)
        elif kind == "Call":
            for argument in node.args:
                if isinstance(argument, tvm.ir.Expr):
                    self._value(argument)
        elif kind in ("Ramp", "Broadcast"):
            for name in ("base", "stride", "value"):
                if hasattr(node, name):
                    self._value(getattr(node, name), exact=exact)
        elif kind == "Shuffle":
            for each in (*node.vectors, *node.indices):
                self._value(each, exact=exact)
        else:
            for name in ("a", "b"):
                if isinstance(getattr(node, name, None), tvm.ir.Expr):
                    self._value(getattr(node, name))

    def _load(self, load: Any, *, exact: bool) -> None:
        for index in load.indices:
            self._value(index, exact=False)
        if str(load.ty) != _WIDE or load.source not in self._pointers:
            return
        name = self._pointers[load.source]
        if exact:
            _refuse_element(name)
        self._read_as(name, LOW)

    def _cast(self, node: Any, *, exact: bool) -> None:
        source, target = str(node.value.ty), str(node.ty)
        if source == _WIDE:
            # Cutting down is what 32 bits do anyway.
            self._value(node.value, exact=not target.startswith(_INTEGERS))
            return
        self._value(node.value)
        if target == _WIDE and exact and not (source == "bool" or source.startswith("int")):
            self._require(node)

    def _clamped(self, node: Any) -> bool:
        """Prove both parts of a minimum or maximum; whether one of them is read saturated."""
        saturated = [self._saturates(part) for part in (node.a, node.b)]
        for part, read in zip((node.a, node.b), saturated, strict=True):
            if not read:
                self._value(part)
        return any(saturated)

    def _compared(self, node: Any) -> None:
        saturated = [self._saturates(part) for part in (node.a, node.b)]
        for part, read, other in zip((node.a, node.b), saturated, reversed(saturated), strict=True):
            if read:
                continue
            self._value(part)
            lower, upper = self._ranges.of(part)
            if other and not INT32[0] < lower <= upper < INT32[1]:
                self._refuse(part, "is compared with a 64-bit integer and")
        if all(saturated):
            self._refuse(node, "compares two 64-bit integers, each of which")

    def _saturates(self, node: Any) -> bool:
        """Whether `node` is an element of a 64-bit tensor, read saturated, or a clamped one."""
        kind = type(node).__name__
        if str(node.ty) != _WIDE:
            return False
        if kind in _CLAMPS:
            return self._clamped(node)
        if kind != "TensorLoad" or node.source not in self._pointers:
            return False
        for index in node.indices:
            self._value(index, exact=False)
        self._read_as(self._pointers[node.source], SATURATED)
        return True

    def _read_as(self, name: str, mode: str) -> None:
        if self.modes.setdefault(name, mode) != mode:
            raise CompileError(
                f"{name!r} holds 64-bit integers, of which one use needs the low 32 bits and "
                "another the true value; give the model 32-bit integers"
            )

    def _require(self, node: Any, what: str = "") -> None:
        lower, upper = self._ranges.of(node)
        if lower < INT32[0] or upper > INT32[1]:
            self._refuse(node, what)

    def _refuse(self, node: Any, what: str) -> None:
        def look(load: Any) -> None:
            if str(load.ty) == _WIDE and load.source in self._pointers:
                _refuse_element(self._pointers[load.source])

        tvm_ffi.structural_walk(node, [(tvm.ir.TensorLoad, look)])
        lower, upper = self._ranges.of(node)
        raise CompileError(
            f"the 64-bit integer `{str(node)[:120]}` {what + ' ' if what else ''}may be from "
            f"{lower} to {upper}, as far as the shapes tell: WGSL has 32 bits; compile for smaller "
            "shapes, or keep the operator on the source"
        )


def _refuse_element(name: str) -> None:
    raise CompileError(
        f"an element of {name!r} is a 64-bit integer of any size, and what is computed with it "
        "needs its true value: WGSL has 32 bits; give the model 32-bit integers, or keep the "
        "operator on the source"
    )


def _is_mask(node: Any) -> bool:
    return isinstance(node, tirx.IntImm) and 0 <= int(node.value) <= INT32[1]
