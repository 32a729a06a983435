"""Finds static extents of a PrimFunc that may change together, and changes them.

Works on the function's JSON. Buffer dimensions, block iterators and loops that depend on each other
(a buffer is indexed by an iterator, an iterator is bound to a loop) form a class with one extent. A
class changes as a unit, and only if each member is used alone: an iterator inside ``i * 12 + j`` or
``i // 4`` ties its extent to other numbers, which prevents a change. Accesses therefore stay in
bounds, whatever the new extent. Constants derived from an extent, such as a mean's divisor, keep
their value: the function computes something else, but is still compared with itself, on the
reference, in float64 and on the target.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import tvm

from tapml.importing.function_text import structural_hash, to_script
from tapml.plan.graph_plan import Operator
from tapml_targets.library import Parameter

Member: TypeAlias = tuple[str, int, int]
"""``("buffer", variable, axis)``, ``("iterator", variable, 0)`` or ``("loop", variable, 0)``; a
variable is the index of a JSON node."""

# Statements and expressions that define a buffer's layout, or take it by reference.
_OPAQUE: Final = (
    "tirx.AttrStmt", "tirx.IfThenElse", "tirx.Evaluate", "tirx.While", "tirx.Bind",
    "tirx.AllocBuffer", "tirx.DeclBuffer", "s_tir.MatchBufferRegion", "tirx.AssertStmt",
)  # fmt: skip
_OPAQUE_CALLS: Final = ("address_of", "access_ptr", "packed", "extern", "assume")


@dataclass(frozen=True)
class ExtentClass:
    """Dimensions, iterators and loops with one extent.

    Attributes
    ----------
    extent
        The current extent.
    members
        All members.
    axes
        (parameter, axis) pairs among them, in parameter order.
    """

    extent: int
    members: frozenset[Member]
    axes: tuple[tuple[int, int], ...]


def extent_classes(operator: Operator) -> tuple[ExtentClass, ...]:
    """The classes whose extent may change, the largest first.

    Empty if the function has variants for other platforms, or contains an opaque use of a buffer.
    """
    if operator.variants:
        return ()
    return _Function(operator.function).classes()


def with_extent(operator: Operator, chosen: ExtentClass, extent: int) -> Operator:
    """The operator with a class's extent replaced, without its body, which has the old shapes."""
    function = tvm.ir.load_json(_Function(operator.function).resized(chosen, extent))
    parameters = list(operator.parameters)
    for position, axis in chosen.axes:
        shape = list(parameters[position].shape)
        shape[axis] = extent
        parameters[position] = Parameter(
            parameters[position].name,
            tuple(shape),
            parameters[position].dtype,
            parameters[position].role,
        )
    return replace(
        operator,
        hash=structural_hash(function),
        parameters=tuple(parameters),
        function=tvm.ir.save_json(function),
        script=to_script(function, operator.name),
        body=None,
        torch_forms=(),
    )


class _Function:
    """A PrimFunc's JSON and its union-find structure."""

    def __init__(self, text: str) -> None:
        self.document = json.loads(text)
        self.nodes: list[dict[str, Any]] = self.document["nodes"]
        self._parent: dict[Member, Member] = {}
        self._frozen: set[Member] = set()
        self._iterators = {
            node["data"]["var"]: index
            for index, node in enumerate(self.nodes)
            if node["type"] == "tirx.IterVar"
        }
        root = self.nodes[self.document["root_index"]]
        self.parameters = [v for v in self._list(root["data"]["params"]) if self._is_buffer(v)]

    def classes(self) -> tuple[ExtentClass, ...]:
        if self._is_opaque():
            return ()
        self._unite_all()
        groups: dict[Member, set[Member]] = {}
        for member in self._parent:
            groups.setdefault(self._find(member), set()).add(member)
        frozen = {self._find(member) for member in self._frozen}
        found = []
        for leader, members in groups.items():
            extents = {self._extent(member) for member in members}
            axes = tuple(
                (position, axis)
                for position, variable in enumerate(self.parameters)
                for axis in range(len(self._shape(variable)))
                if ("buffer", variable, axis) in members
            )
            extent = extents.pop()
            if leader not in frozen and not extents and extent is not None and extent > 1 and axes:
                found.append(ExtentClass(extent, frozenset(members), axes))
        return tuple(sorted(found, key=lambda each: (-each.extent, each.axes)))

    def resized(self, chosen: ExtentClass, extent: int) -> str:
        """The function's JSON with another extent for a class."""
        kinds: dict[int, int] = {}
        axes: dict[int, list[int]] = {}
        for kind, variable, axis in chosen.members:
            if kind == "buffer":
                axes.setdefault(variable, []).append(axis)
            elif kind == "iterator":
                node = self.nodes[self._iterator_of(variable)]["data"]
                domain = dict(self.nodes[node["dom"]]["data"])
                domain["extent"] = self._integer_like(domain["extent"], extent, kinds)
                node["dom"] = self._append("ir.Range", domain)
            else:
                for loop in self._loops_of(variable):
                    loop["extent"] = self._integer_like(loop["extent"], extent, kinds)
        for variable, changed in axes.items():
            self._reshape_buffer(variable, changed, extent, kinds)
        self._reshape_signature(chosen, extent, kinds)
        return json.dumps(self.document)

    def _is_opaque(self) -> bool:
        for node in self.nodes:
            if node["type"] in _OPAQUE:
                return True
            if node["type"] == "ir.Op" and any(word in node["data"] for word in _OPAQUE_CALLS):
                return True
        return False

    def _unite_all(self) -> None:
        for variable in self._buffers():
            for axis in range(len(self._shape(variable))):
                self._find(("buffer", variable, axis))
        for node in self.nodes:
            data: Any = node.get("data")
            match node["type"]:
                case "tirx.IterVar":
                    member = self._find(("iterator", data["var"], 0))
                    if not self._is_zero(self.nodes[data["dom"]]["data"]["min"]):
                        self._frozen.add(member)
                case "tirx.For":
                    member = self._find(("loop", data["loop_var"], 0))
                    if not self._is_zero(data["min"]) or data["thread_binding"]:
                        self._frozen.add(member)
        for node in self.nodes:
            data = node.get("data")
            match node["type"]:
                case "s_tir.SBlockRealize":
                    self._unite_block(data)
                case "tirx.BufferStore":
                    self._unite_access(data["buffer"], self._list(data["indices"]))
                case "ir.TensorLoad":
                    self._unite_access(data["source"], self._list(data["indices"]))
                case "ir.TensorRegion":
                    self._unite_region(data)

    def _unite_block(self, realize: dict[str, Any]) -> None:
        block = self.nodes[realize["block"]]["data"]
        iterators = [self.nodes[i]["data"]["var"] for i in self._list(block["iter_vars"])]
        for variable, value in zip(iterators, self._list(realize["iter_values"]), strict=True):
            self._unite_index(("iterator", variable, 0), value)
        # Variables of a predicate are bounded by it, too.
        self._freeze_variables(realize["predicate"])

    def _unite_access(self, buffer: int, indices: list[int]) -> None:
        for axis, index in enumerate(indices):
            self._unite_index(("buffer", buffer, axis), index)

    def _unite_region(self, region: dict[str, Any]) -> None:
        for axis, place in enumerate(self._list(region["region"])):
            extent = self.nodes[place]["data"]
            if self._integer(extent["extent"]) == 1:
                self._unite_index(("buffer", region["source"], axis), extent["min"])
            else:
                self._frozen.add(("buffer", region["source"], axis))
                self._freeze_variables(extent["min"])
                self._freeze_variables(extent["extent"])

    def _unite_index(self, member: Member, index: int) -> None:
        """Unite a member with the variable it is indexed by or bound to; freeze anything else."""
        for kind in ("iterator", "loop"):
            other = (kind, index, 0)
            if other in self._parent:
                self._parent[self._find(other)] = self._find(member)
                return
        self._frozen.add(member)
        self._freeze_variables(index)

    def _freeze_variables(self, expression: int) -> None:
        for variable in self._variables(expression):
            for kind in ("iterator", "loop"):
                if (kind, variable, 0) in self._parent:
                    self._frozen.add((kind, variable, 0))

    def _variables(self, expression: int) -> Iterator[int]:
        """The variables in an expression, including some that are only numbers.

        The JSON does not distinguish references from numbers; an extra variable only prevents a
        reduction.
        """
        pending, seen = [expression], set()
        while pending:
            index = pending.pop()
            if index in seen or index >= len(self.nodes):
                continue
            seen.add(index)
            node = self.nodes[index]
            if node["type"] == "ir.Var":
                yield index
                continue
            data = node.get("data")
            if isinstance(data, list):
                pending += data
            elif isinstance(data, dict):
                pending += [
                    value
                    for name, value in data.items()
                    if name not in ("span", "ty") and type(value) is int
                ]

    def _find(self, member: Member) -> Member:
        parent = self._parent.setdefault(member, member)
        while parent != self._parent[parent]:
            parent = self._parent[parent]
        self._parent[member] = parent
        return parent

    def _extent(self, member: Member) -> int | None:
        """The static extent of a member; None if it is dynamic."""
        kind, variable, axis = member
        if kind == "buffer":
            return self._integer(self._shape(variable)[axis])
        if kind == "iterator":
            domain = self.nodes[self._iterator_of(variable)]["data"]["dom"]
            return self._integer(self.nodes[domain]["data"]["extent"])
        extents = {self._integer(loop["extent"]) for loop in self._loops_of(variable)}
        return extents.pop() if len(extents) == 1 else None

    def _iterator_of(self, variable: int) -> int:
        return self._iterators[variable]

    def _loops_of(self, variable: int) -> list[dict[str, Any]]:
        return [
            node["data"]
            for node in self.nodes
            if node["type"] == "tirx.For" and node["data"]["loop_var"] == variable
        ]

    def _buffers(self) -> Iterator[int]:
        return (index for index in range(len(self.nodes)) if self._is_buffer(index))

    def _is_buffer(self, index: int) -> bool:
        node = self.nodes[index]
        if node["type"] != "ir.Var":
            return False
        kind: str = self.nodes[node["data"]["ty"]]["type"]
        return kind == "tirx.BufferType"

    def _shape(self, variable: int) -> list[int]:
        return self._list(self.nodes[self.nodes[variable]["data"]["ty"]]["data"]["shape"])

    def _list(self, index: int) -> list[int]:
        data: list[int] = self.nodes[index]["data"]
        return data

    def _integer(self, index: int) -> int | None:
        node = self.nodes[index]
        return self.nodes[node["data"]["value"]]["data"] if node["type"] == "ir.IntImm" else None

    def _is_zero(self, index: int) -> bool:
        return self._integer(index) == 0

    def _append(self, kind: str, data: Any) -> int:
        self.nodes.append({"type": kind, "data": data})
        return len(self.nodes) - 1

    def _integer_like(self, index: int, value: int, made: dict[int, int]) -> int:
        """A node for `value` with the integer type of another node; one per type."""
        kind = self.nodes[index]["data"]["ty"]
        if kind not in made:
            number = self._append("int", value)
            made[kind] = self._append("ir.IntImm", {"span": 0, "ty": kind, "value": number})
        return made[kind]

    def _resized_list(self, index: int, axes: list[int], extent: int, made: dict[int, int]) -> int:
        items = list(self._list(index))
        for axis in axes:
            items[axis] = self._integer_like(items[axis], extent, made)
        return self._append("ffi.Array", items)

    def _reshape_buffer(
        self, variable: int, axes: list[int], extent: int, made: dict[int, int]
    ) -> None:
        node = self.nodes[variable]["data"]
        layout = dict(self.nodes[node["ty"]]["data"])
        layout["shape"] = self._resized_list(layout["shape"], axes, extent, made)
        node["ty"] = self._append("tirx.BufferType", layout)

    def _reshape_signature(self, chosen: ExtentClass, extent: int, made: dict[int, int]) -> None:
        """Change the shapes in the function's own type, too."""
        root = self.nodes[self.document["root_index"]]["data"]
        signature = dict(self.nodes[root["ty"]]["data"])
        types = list(self._list(signature["params"]))
        tensors = [i for i, t in enumerate(types) if self.nodes[t]["type"] == "relax.TensorType"]
        for position in sorted({position for position, _ in chosen.axes}):
            axes = [axis for at, axis in chosen.axes if at == position]
            tensor = dict(self.nodes[types[tensors[position]]]["data"])
            shape = dict(self.nodes[tensor["shape"]]["data"])
            shape["values"] = self._resized_list(shape["values"], axes, extent, made)
            kind = dict(self.nodes[shape["ty"]]["data"]) | {"values": shape["values"]}
            shape["ty"] = self._append("relax.ShapeType", kind)
            tensor["shape"] = self._append("relax.expr.ShapeExpr", shape)
            types[tensors[position]] = self._append("relax.TensorType", tensor)
        signature["params"] = self._append("ffi.Array", types)
        root["ty"] = self._append("relax.FuncType", signature)
