"""Ranges of the integers inside a kernel, by TVM's analysis of constant bounds."""

from __future__ import annotations

from typing import Any, Final

import tvm
import tvm_ffi
from tvm import sym, tirx

from tapml_targets.codegen.expression import call_name
from tapml_targets.codegen.symbol_bounds import INT32, LaunchRange, Range

_WIDE: Final = "int64"
_INTEGERS: Final = ("int", "uint")
# A range as wide as this says nothing, and its extent does not fit 64 bits.
_UNBOUNDED: Final = 1 << 62


class ValueRanges:
    """What variables can be, and expressions of them.

    Parameters
    ----------
    function
        The device PrimFunc whose scalars are known from the start.
    launch
        What its scalars and grid can be.
    kept
        Ranges of what shared and local 64-bit memory holds, as far as they are known; what
        :meth:`keep` learns is added.

    Attributes
    ----------
    given
        Buffers that the kernel is given: what is read from them can be anything.
    """

    def __init__(self, function: Any, launch: LaunchRange, kept: dict[Any, Range]) -> None:
        self.kept = kept
        self.given: set[Any] = set()
        self._analyzer = sym.Analyzer()
        self._stand_ins: dict[Any, Any] = {}
        self._grid = dict(zip("xyz", launch.grid, strict=True))
        scalars = [each for each in function.params if tvm.ir.is_prim_var(each)]
        for variable, (lower, upper) in zip(scalars, launch.scalars, strict=True):
            self.bind(variable, lower, upper)

    def bind_threads(self, attribute: Any) -> None:
        """Note what the index of an attribute of threads can be; nothing for another attribute."""
        if attribute.attr_key != "thread_extent":
            return
        tag = str(attribute.node.thread_tag)
        known = self._grid.get(tag[-1]) if tag.startswith("blockIdx.") else None
        upper = self.of(attribute.value)[1]
        self.bind(attribute.node.var, 0, max(0, min(upper, known or upper) - 1))

    def bind_loop(self, loop: Any) -> int:
        """Note what the variable of a loop can be; the most rounds of the loop."""
        first, extent = self.of(loop.min), self.of(loop.extent)
        self.bind(loop.loop_var, first[0], max(first[0], first[1] + extent[1] - 1))
        return extent[1]

    def bind(self, variable: Any, lower: int, upper: int) -> None:
        """Note what a variable can be."""
        kind = str(variable.ty)
        if not kind.startswith(_INTEGERS) or upper - lower >= _UNBOUNDED:
            return
        if kind != _WIDE and not INT32[0] <= lower <= upper < INT32[1]:
            return
        first, count = (tirx.IntImm(kind, value) for value in (lower, upper - lower + 1))
        self._analyzer.bind(variable, tvm.ir.Range.from_min_extent(first, count), True)

    def name(self, variable: Any, value: Any) -> None:
        """Note that a variable stands for an expression."""
        if str(variable.ty) == _WIDE:
            self.bind(variable, *self.of(value))
        elif str(variable.ty).startswith(_INTEGERS):
            self._analyzer.bind(variable, value, True)

    def keep(self, buffer: Any, lower: int, upper: int) -> None:
        """Note what is written to shared or local memory."""
        before = self.kept.get(buffer, (lower, upper))
        self.kept[buffer] = (min(lower, before[0]), max(upper, before[1]))
        self._stand_ins.pop(buffer, None)

    def of(self, node: Any) -> Range:
        """The smallest and the largest value of an expression."""
        if isinstance(node, tirx.IntImm):
            return int(node.value), int(node.value)

        def stand_in(load: Any) -> Any:
            if str(load.ty) != _WIDE or load.source in self.given:
                return load
            if load.source not in self._stand_ins:
                variable = tirx.Var(str(load.source.name), _WIDE)
                self._stand_ins[load.source] = variable
                self.bind(variable, *self.kept.get(load.source, (0, 0)))
            return self._stand_ins[load.source]

        def choice(call: Any) -> Any:
            # TVM bounds a Select by its branches, and knows nothing of this.
            return tirx.Select(*call.args) if call_name(call) == "if_then_else" else call

        def remainder(node: Any) -> Any:
            # Nothing is divided by 0, and TVM knows no bound where the divisor might be 0.
            if self._analyzer.const_int_bound(node.b).min_value != 0:
                return node
            return type(node)(node.a, tirx.Max(node.b, tirx.IntImm(str(node.b.ty), 1)))

        plain = node
        if not isinstance(node, tvm.ir.Var):
            plain = tvm_ffi.structural_map(
                node,
                [
                    (tvm.ir.TensorLoad, stand_in),
                    (tvm.ir.Call, choice),
                    ((tirx.Mod, tirx.FloorMod), remainder),
                ],
            )
        bound = self._analyzer.const_int_bound(plain)
        return int(bound.min_value), int(bound.max_value)
