"""A proof that a value of 64 bits inside a kernel is right in 32: see :mod:`.proof`."""

from __future__ import annotations

from typing import Any, Final

import tvm
import tvm_ffi
from tvm import tirx

from tapml_targets.codegen.copies import is_move
from tapml_targets.codegen.expression import call_name
from tapml_targets.codegen.symbol_bounds import INT32
from tapml_targets.codegen.value_ranges import ValueRanges
from tapml_targets.errors import CompileError

LOW: Final = "low"
SATURATED: Final = "saturated"

_WIDE: Final = "int64"
_RING: Final = frozenset({"Add", "Sub", "Mul"})
_COMPARISONS: Final = frozenset({"EQ", "NE", "LT", "LE", "GT", "GE"})
_CLAMPS: Final = frozenset({"Min", "Max"})
_INTEGERS: Final = ("int", "uint")
_WORD_BITS: Final = 32


class TooWideError(CompileError):
    """The shapes do not tell that a value is right in 32 bits."""


class ValueProof:
    """Proves values one by one, and notes how the tensors in them are to be read.

    Parameters
    ----------
    ranges
        What the variables in the values can be.

    Attributes
    ----------
    pointers
        Names of the tensors that the kernel is given, by buffer.
    modes
        :data:`LOW` or :data:`SATURATED` for each such tensor of 64-bit integers that was read.
    """

    def __init__(self, ranges: ValueRanges) -> None:
        self.ranges = ranges
        self.pointers: dict[Any, str] = {}
        self.modes: dict[str, str] = {}

    def prove(self, node: Any, *, exact: bool = True) -> None:
        """Prove `node`: its true value where `exact`, or modulo 2**32."""
        wide = str(node.ty) == _WIDE
        kind = type(node).__name__
        if kind == "IntImm":
            if wide:
                self.require(node)
        elif kind == "Var":
            if wide and exact:
                self.require(node)
        elif kind in _RING:
            if wide and exact:
                self.require(node)
            self.prove(node.a, exact=not wide)
            self.prove(node.b, exact=not wide)
        elif kind == "TensorLoad":
            self._load(node, exact=exact)
        elif kind == "Cast":
            self._cast(node, exact=exact)
        elif kind in _CLAMPS and wide:
            if self._clamped(node) or exact:
                self.require(node)
        elif kind in _COMPARISONS and str(node.a.ty) == _WIDE:
            self._compared(node)
        elif kind == "BitwiseAnd" and wide and _is_mask(node.b):
            self.prove(node.a, exact=False)
        elif kind == "Let":
            self.prove(node.value, exact=False)
            self.ranges.name(node.var, node.value)
            self.prove(node.body, exact=exact)
        else:
            self._parts(node, kind, exact=exact)

    def _shifted(self, node: Any, *, exact: bool) -> None:
        """A shift to the left is a product, as long as 32 bits can be shifted so far."""
        if exact:
            self.require(node)
        self.prove(node.a, exact=False)
        self.prove(node.b)
        lower, upper = self.ranges.of(node.b)
        if lower < 0 or upper >= _WORD_BITS:
            self._refuse(node.b, "is how far to shift and")

    def _parts(self, node: Any, kind: str, *, exact: bool) -> None:
        if kind == "LShift" and str(node.ty) == _WIDE:
            self._shifted(node, exact=exact)
        elif kind == "Select":
            self.prove(node.condition)
            self.prove(node.true_value, exact=exact)
            self.prove(node.false_value, exact=exact)
        elif kind == "Call" and call_name(node) == "if_then_else":
            condition, true_value, false_value = node.args
            self.prove(condition)
            self.prove(true_value, exact=exact)
            self.prove(false_value, exact=exact)
        elif kind == "Call":
            _refuse_bits(node)
            # What is moved is moved by its place: an index.
            exact = not is_move(node)
            for argument in node.args:
                if isinstance(argument, tvm.ir.Expr):
                    self.prove(argument, exact=exact)
        elif kind in ("Ramp", "Broadcast"):
            for name in ("base", "stride", "value"):
                if hasattr(node, name):
                    self.prove(getattr(node, name), exact=exact)
        elif kind == "Shuffle":
            for each in (*node.vectors, *node.indices):
                self.prove(each, exact=exact)
        else:
            for name in ("a", "b"):
                if isinstance(getattr(node, name, None), tvm.ir.Expr):
                    self.prove(getattr(node, name))

    def _load(self, load: Any, *, exact: bool) -> None:
        for index in load.indices:
            self.prove(index, exact=False)
        if str(load.ty) != _WIDE or load.source not in self.pointers:
            return
        name = self.pointers[load.source]
        if exact:
            _refuse_element(name)
        self._read_as(name, LOW)

    def _cast(self, node: Any, *, exact: bool) -> None:
        source, target = str(node.value.ty), str(node.ty)
        if source == _WIDE:
            # Cutting down is what 32 bits do anyway.
            self.prove(node.value, exact=not target.startswith(_INTEGERS))
            return
        self.prove(node.value)
        if target == _WIDE and exact and not (source == "bool" or source.startswith("int")):
            self.require(node)

    def _clamped(self, node: Any) -> bool:
        """Prove both parts of a minimum or maximum; whether one of them is read saturated."""
        saturated = [self._saturates(part) for part in (node.a, node.b)]
        for part, read in zip((node.a, node.b), saturated, strict=True):
            if not read:
                self.prove(part)
        return any(saturated)

    def _compared(self, node: Any) -> None:
        saturated = [self._saturates(part) for part in (node.a, node.b)]
        for part, read, other in zip((node.a, node.b), saturated, reversed(saturated), strict=True):
            if read:
                continue
            self.prove(part)
            lower, upper = self.ranges.of(part)
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
        if kind != "TensorLoad" or node.source not in self.pointers:
            return False
        for index in node.indices:
            self.prove(index, exact=False)
        self._read_as(self.pointers[node.source], SATURATED)
        return True

    def read_low(self, buffer: Any) -> None:
        """Note that a tensor that the kernel is given is read for its low words."""
        self._read_as(self.pointers[buffer], LOW)

    def _read_as(self, name: str, mode: str) -> None:
        if self.modes.setdefault(name, mode) != mode:
            raise CompileError(
                f"{name!r} holds 64-bit integers, of which one use needs the low 32 bits and "
                "another the true value; give the model 32-bit integers"
            )

    def require(self, node: Any, what: str = "") -> None:
        """Prove that the true value of `node` lies within 32 bits."""
        lower, upper = self.ranges.of(node)
        if lower < INT32[0] or upper > INT32[1]:
            self._refuse(node, what)

    def _refuse(self, node: Any, what: str) -> None:
        def look(load: Any) -> None:
            if str(load.ty) == _WIDE and load.source in self.pointers:
                _refuse_element(self.pointers[load.source])

        tvm_ffi.structural_walk(node, [(tvm.ir.TensorLoad, look)])
        lower, upper = self.ranges.of(node)
        raise TooWideError(
            f"the 64-bit integer `{str(node)[:120]}` {what + ' ' if what else ''}may be from "
            f"{lower} to {upper}, as far as the shapes tell: this target has 32 bits; compile for "
            "smaller shapes, or keep the operator on the source"
        )


def _refuse_element(name: str) -> None:
    raise CompileError(
        f"an element of {name!r} is a 64-bit integer of any size, and what is computed with it "
        "needs its true value: this target has 32 bits; give the model 32-bit integers, or keep "
        "the operator on the source"
    )


def _refuse_bits(call: Any) -> None:
    if call_name(call) == "reinterpret" and _WIDE in (str(call.ty), str(call.args[0].ty)):
        raise CompileError(
            f"`{str(call)[:120]}` needs all 64 bits, and this target has 32: keep the operator on "
            "the source"
        )


def _is_mask(node: Any) -> bool:
    return isinstance(node, tirx.IntImm) and 0 <= int(node.value) <= INT32[1]
