"""A PrimFunc's JSON as stores into buffers.

TVM's JSON is a list of nodes that refer to each other by number. Only what a verdict needs is read
from it. An unknown form makes the function opaque instead of being misread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from tapml_targets.dtype import dtype as lookup
from tapml_targets.errors import InputError
from tapml_targets.expression import Expression
from tapml_targets.float_formats import float_format

_OPERATORS: Final[dict[str, str]] = {
    "prim.Add": "add",
    "prim.Sub": "sub",
    "prim.Mul": "mul",
    "prim.FloorDiv": "floordiv",
    "prim.FloorMod": "floormod",
    "prim.Min": "min",
    "prim.Max": "max",
}
# Fields that hold the operands of an expression.
_OPERANDS: Final[dict[str, tuple[str, ...]]] = {
    **{f"prim.{name}": ("a", "b") for name in ("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max")},
    **{f"prim.{name}": ("a", "b") for name in ("FloorDiv", "FloorMod", "And", "Or")},
    **{f"prim.{name}": ("a", "b") for name in ("EQ", "NE", "LT", "LE", "GT", "GE")},
    "prim.Not": ("a",),
    "prim.Cast": ("value",),
    "prim.Select": ("condition", "true_value", "false_value"),
    "ir.Call": ("args",),
    "ir.TensorLoad": (),
    "ir.Var": (),
    "ir.IntImm": (),
    "ir.FloatImm": (),
}
_REDUCED: Final = 2
"""``IterVarType::kCommReduce``: TVM's mark of a reduction axis."""


@dataclass(frozen=True)
class Store:
    """One assignment to an element of a buffer.

    Attributes
    ----------
    buffer, value
        Node numbers.
    sources
        Buffers that the value is read from, without `buffer` itself.
    accumulates
        Whether it adds to the very element that it writes: a step of a reduction.
    carries
        Whether it reads another element of the buffer that it writes: a step of a scan.
    block
        Node number of the innermost enclosing block, if any.
    """

    buffer: int
    value: int
    sources: frozenset[int]
    accumulates: bool
    carries: bool
    block: int | None


class FunctionTree:
    """The stores of one function. Make it with :meth:`parse`."""

    def __init__(self, nodes: list[dict[str, Any]], root: int) -> None:
        self._nodes = nodes
        self.parameters: tuple[int, ...] = tuple(self._array(self._data(root)["params"]))

    @staticmethod
    def parse(function: str) -> FunctionTree | None:
        """Parse a PrimFunc's JSON; None if it is malformed or calls external functions."""
        try:
            document = json.loads(function)
            nodes = document["nodes"]
            tree = FunctionTree(nodes, document["root_index"])
            # An extern or packed call may write anywhere.
            opaque = any(node["type"] in ("tirx.Evaluate", "tirx.While") for node in nodes)
            return None if opaque or not tree.stores else tree
        except (ValueError, KeyError, TypeError, IndexError):
            return None

    @cached_property
    def stores(self) -> tuple[Store, ...]:
        """All stores of the function except those that initialise a reduction."""
        blocks = self._blocks
        return tuple(
            self._store(node["data"], blocks.get(index))
            for index, node in enumerate(self._nodes)
            if node["type"] == "tirx.BufferStore" and index not in self._initial
        )

    def stores_behind(self, buffer: int) -> tuple[Store, ...] | None:
        """The stores that `buffer` depends on; None if nothing is stored in it."""
        behind: list[Store] = []
        seen, waiting = {buffer}, [buffer]
        while waiting:
            mine = [store for store in self.stores if store.buffer == waiting[-1]]
            name = waiting.pop()
            if not mine and (name == buffer or name not in self.parameters):
                return None
            behind += mine
            for store in mine:
                waiting += store.sources - seen
                seen |= store.sources
        return tuple(behind)

    def kind(self, value: int) -> str:
        """Type of a node."""
        return str(self._nodes[value]["type"])

    def without_nan(self, value: int) -> int:
        """What is chosen where nothing that is asked for is NaN."""
        while self.kind(value) == "prim.Select":
            data = self._data(value)
            asked = data["condition"]
            if self.kind(asked) != "ir.Call" or "isnan" not in self.calls(asked):
                break
            value = data["false_value"]
        return value

    def operations(self, value: int) -> set[str]:
        """Types of the nodes below `value`."""
        return {self.kind(index) for index in self._within(value)}

    def has_unknown(self, value: int) -> bool:
        """Whether `value` contains a node type that this module does not know."""
        return any(self.kind(index) not in _OPERANDS for index in self._within(value))

    def calls(self, value: int) -> set[str]:
        """Names of the functions that `value` calls, without their dialect."""
        return {
            str(self._data(self._data(index)["op"])).rpartition(".")[2]
            for index in self._within(value)
            if self.kind(index) == "ir.Call"
        }

    def float_dtypes(self, value: int, kinds: Set[str]) -> set[str]:
        """Floating-point dtypes of the nodes of some `kinds` below `value`."""
        dtypes = {self._dtype(index) for index in self._within(value) if self.kind(index) in kinds}
        return {name for name in dtypes if lookup(name).is_float}

    def rounding_casts(self, value: int) -> bool:
        """Whether `value` contains a cast that rounds."""
        return any(
            self._rounds(self._dtype(self._data(index)["value"]), self._dtype(index))
            for index in self._within(value)
            if self.kind(index) == "prim.Cast"
        )

    def passed_dtypes(self, value: int) -> set[str]:
        """Dtypes that numbers inside `value` are rounded to, and then cast to other ones.

        Between the two casts they may be chosen from, as the larger of two is.
        """
        return {
            self._dtype(cast)
            for index in self._within(value)
            if self.kind(index) == "prim.Cast"
            for cast in self._casts_chosen(self._data(index)["value"])
            if self._rounds(self._dtype(self._data(cast)["value"]), self._dtype(cast))
        }

    def _casts_chosen(self, value: int) -> Iterator[int]:
        """Casts to the dtype of `value` that it may be the result of."""
        dtype, seen, waiting = self._dtype(value), {value}, [value]
        while waiting:
            index = waiting.pop()
            if self.kind(index) == "prim.Cast":
                yield index
                continue
            # A condition has another dtype.
            parts = {each for each in self._operands(index) if self._dtype(each) == dtype} - seen
            seen |= parts
            waiting += parts

    def factors(self, store: Store) -> Iterator[tuple[frozenset[int], frozenset[int]]]:
        """The tensors on both sides of each product in what `store` stores."""
        for index in self._within(store.value):
            if self.kind(index) == "prim.Mul":
                data = self._data(index)
                yield self._loaded(data["a"]), self._loaded(data["b"])

    def reduced_extent(self, store: Store) -> Expression | None:
        """How many terms `store` adds up per element; None if unknown."""
        if store.block is None:
            return None
        extent: Expression = 1
        for index in self._array(self._data(store.block)["iter_vars"]):
            variable = self._data(index)
            if variable["iter_type"] != _REDUCED:
                continue
            factor = self._expression(self._data(variable["dom"])["extent"])
            if factor is None:
                return None
            extent = factor if extent == 1 else ("mul", extent, factor)
        return extent

    def buffer_dtype(self, buffer: int) -> str:
        """Dtype of a buffer's elements."""
        return str(self._data(self._data(self._data(buffer)["ty"])["dtype"])["dtype"])

    def _store(self, data: dict[str, Any], block: int | None) -> Store:
        buffer, value = data["buffer"], data["value"]
        own = [load for load in self._loads(value) if self._data(load)["source"] == buffer]
        same = [self._equal(self._data(load)["indices"], data["indices"]) for load in own]
        sources = self._loaded(value) - {buffer}
        return Store(buffer, value, sources, bool(own) and all(same), not all(same), block)

    @cached_property
    def _initial(self) -> frozenset[int]:
        """Stores inside the ``init`` of a block."""
        found: set[int] = set()
        for node in self._nodes:
            if node["type"] == "s_tir.SBlock" and self.kind(node["data"]["init"]) != "None":
                found |= set(self._statements(node["data"]["init"]))
        return frozenset(found)

    @cached_property
    def _blocks(self) -> dict[int, int]:
        """The innermost block around each statement."""
        return {
            statement: index
            for index, node in enumerate(self._nodes)
            if node["type"] == "s_tir.SBlock"
            for statement in self._statements(node["data"]["body"])
        }

    def _statements(self, start: int) -> Iterator[int]:
        """Statements below `start`, without those of nested blocks."""
        waiting = [start]
        while waiting:
            index = waiting.pop()
            yield index
            data = self._data(index)
            if self.kind(index) == "tirx.SeqStmt":
                waiting += self._array(data["seq"])
            elif isinstance(data, dict) and not self.kind(index).startswith("s_tir."):
                waiting += [
                    data[field] for field in ("body", "then_case", "else_case") if field in data
                ]

    def _within(self, value: int) -> set[int]:
        """Nodes of the expression `value`, without the indices of what it loads."""
        seen: set[int] = set()
        waiting = [value]
        while waiting:
            index = waiting.pop()
            if index in seen:
                continue
            seen.add(index)
            waiting += self._operands(index)
        return seen

    def _operands(self, index: int) -> list[int]:
        found: list[int] = []
        for field in _OPERANDS.get(self.kind(index), ()):
            operand = self._data(index)[field]
            found += self._array(operand) if field == "args" else [operand]
        return found

    def _loads(self, value: int) -> list[int]:
        return [index for index in self._within(value) if self.kind(index) == "ir.TensorLoad"]

    def _loaded(self, value: int) -> frozenset[int]:
        return frozenset(self._data(load)["source"] for load in self._loads(value))

    def _dtype(self, value: int) -> str:
        data = self._data(self._data(value)["ty"])
        return str(data.get("dtype", "")) if isinstance(data, dict) else ""

    @staticmethod
    def _rounds(given: str, made: str) -> bool:
        if not lookup(made).is_float:
            return False
        if not lookup(given).is_float:
            return given != "bool"
        wide, narrow = float_format(given), float_format(made)
        return wide.mantissa_bits > narrow.mantissa_bits or wide.min_exponent < narrow.min_exponent

    def _equal(self, left: int, right: int) -> bool:
        """Whether two index expressions are the same."""
        if left == right:
            return True
        if self.kind(left) != self.kind(right) or self.kind(left) == "ir.Var":
            return False
        first, second = self._data(left), self._data(right)
        if isinstance(first, list):
            return len(first) == len(second) and all(map(self._equal, first, second))
        if not isinstance(first, dict):
            return bool(first == second)
        return all(
            name in second and self._equal(part, second[name])
            for name, part in first.items()
            if name not in ("span", "ty")
        )

    def _expression(self, value: int) -> Expression | None:
        """The integer expression over shape symbols; None if it is not one."""
        kind, data = self.kind(value), self._data(value)
        if kind == "ir.IntImm":
            return int(self._data(data["value"]))
        if kind == "ir.Var":
            return str(self._data(data["name"]))
        if kind == "prim.Cast":
            return self._expression(data["value"])
        if kind not in _OPERATORS:
            return None
        left, right = self._expression(data["a"]), self._expression(data["b"])
        return None if left is None or right is None else (_OPERATORS[kind], left, right)

    def _data(self, index: int) -> Any:
        return self._nodes[index].get("data")

    def _array(self, index: int) -> list[int]:
        data = self._data(index)
        if not isinstance(data, list):
            raise InputError(f"expected an array in the function's JSON, got {self.kind(index)}")
        return data
