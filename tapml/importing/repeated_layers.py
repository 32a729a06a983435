"""Decomposes the layers of an exported program once for each kind.

Most layers of a model have the graph of another, with other weights. torch.export's program has all
of them, and decomposing it takes most of an import. So layers are compared there, node by node, the
first of each kind is decomposed, and its nodes are repeated for the others. A layer that differs in
an operation, a number or a shape is a kind of its own.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch.export.graph_signature import ExportGraphSignature

from tapml.importing.written_out import decompositions
from tapml.importing.written_windows import reads_places

_NUMBERED: Final = re.compile(r"^(?:[^.]*\.)*?\d+(?:@\d+)?(?=\.|$)")
# Of a module that is called again.
_CALL: Final = re.compile(r"@\d+")
_NUMBER: Final = re.compile(r"_\d+$")
# Fewer nodes are decomposed faster than compared.
_FEWEST_NODES: Final = 8


@dataclass(frozen=True, eq=False)
class _Layer:
    """The nodes of a layer, which follow each other, and its path."""

    path: str
    nodes: tuple[fx.Node, ...]

    @property
    def used(self) -> set[int]:
        """Places of the nodes that others read."""
        own = set(self.nodes)
        return {place for place, node in enumerate(self.nodes) if not own.issuperset(node.users)}


@dataclass(frozen=True, eq=False)
class _Kind:
    """Layers of one graph: the first, and what each other one reads in place of what it reads."""

    first: _Layer
    others: list[tuple[_Layer, dict[fx.Node, fx.Node]]] = field(default_factory=list)

    @property
    def entering(self) -> list[fx.Node]:
        """What the first reads where another reads something else."""
        found = (here for _, read in self.others for here, there in read.items() if here != there)
        return list(dict.fromkeys(found))

    @property
    def leaving(self) -> list[int]:
        """Places of the nodes that are read outside of one of the layers."""
        return sorted(self.first.used.union(*(layer.used for layer, _ in self.others)))


@torch.library.custom_op("tapml::entering", mutates_args=())
def _entering(value: Tensor, kind: int, place: int) -> Tensor:
    """Marks what a layer reads."""
    raise NotImplementedError


@torch.library.custom_op("tapml::leaving", mutates_args=())
def _leaving(value: Tensor, kind: int, place: int) -> Tensor:
    """Marks what a layer gives."""
    raise NotImplementedError


@torch.library.custom_op("tapml::repeated", mutates_args=())
def _repeated(like: Tensor, read: list[Tensor], kind: int, layer: int, place: int) -> Tensor:
    """What another layer gives that reads `read`."""
    raise NotImplementedError


@_entering.register_fake
@_leaving.register_fake
def _(value: Tensor, kind: int, place: int) -> Tensor:
    del kind, place
    return value.new_empty_strided(value.size(), value.stride())


@_repeated.register_fake
def _(like: Tensor, read: list[Tensor], kind: int, layer: int, place: int) -> Tensor:
    del read, kind, layer, place
    return like.new_empty_strided(like.size(), like.stride())


_ENTERING: Final = torch.ops.tapml.entering.default
_LEAVING: Final = torch.ops.tapml.leaving.default
_REPEATED: Final = torch.ops.tapml.repeated.default


def decompose(
    program: torch.export.ExportedProgram,
) -> tuple[torch.export.ExportedProgram, set[Any]]:
    """What ``program.run_decompositions`` gives for our table, and what was written out by it."""
    written: set[Any] = set()
    table = decompositions(written, places=reads_places(program.graph))
    kinds = _kinds(program.graph)
    if kinds:
        reduced = _with_graph(program, _reduced(program.graph, kinds)).run_decompositions(table)
        marks = [node for node in reduced.graph.nodes if node.target is _ENTERING]
        # What is read for its extents alone has no mark left.
        if len({number for _, number, _ in (mark.args for mark in marks)}) == len(kinds):
            return _with_graph(reduced, _restored(reduced.graph, kinds)), written
    return program.run_decompositions(table), written


def _kinds(graph: fx.Graph) -> list[_Kind]:
    """Kinds of several layers."""
    if any(_writes(node) for node in graph.nodes):
        # What is written to may be seen under another name.
        return []
    found: dict[tuple[Any, ...], list[_Kind]] = {}
    for layer in _layers(graph):
        kinds = found.setdefault(tuple(node.target for node in layer.nodes), [])
        for kind in kinds:
            read = _differences(kind.first, layer)
            if read is not None:
                kind.others.append((layer, read))
                break
        else:
            kinds.append(_Kind(layer))
    # Layers that read the very same have no marks, and are rare.
    return [kind for kinds in found.values() for kind in kinds if kind.others and kind.entering]


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _layers(graph: fx.Graph) -> list[_Layer]:
    """Parts of the graph by the first number in the paths of modules."""
    runs: list[tuple[str, list[fx.Node]]] = []
    between: list[fx.Node] = []
    for node in graph.nodes:
        path = _layer_path(node)
        if not path:
            between.append(node)
        elif runs and runs[-1][0] == path:
            runs[-1][1].extend((*between, node))
            between = []
        else:
            runs.append((path, [node]))
            between = []
    paths = [path for path, _ in runs]
    return [
        _Layer(path, tuple(nodes))
        for path, nodes in runs
        if len(nodes) >= _FEWEST_NODES
        and paths.count(path) == 1
        and all(node.op == "call_function" for node in nodes)
        # Extents that depend on data are each layer's own.
        and not any(node.meta.get("unbacked_bindings") for node in nodes)
    ]


def _layer_path(node: fx.Node) -> str:
    for path, _ in (node.meta.get("nn_module_stack") or {}).values():
        numbered = _NUMBERED.match(path)
        if numbered:
            return numbered.group()
    return ""


def _differences(first: _Layer, other: _Layer) -> dict[fx.Node, fx.Node] | None:
    """What the other reads by what the first reads; None if their graphs differ."""
    inside = dict(zip(first.nodes, other.nodes, strict=True))
    own = set(other.nodes)
    outside: dict[fx.Node, fx.Node] = {}

    def same(here: Any, there: Any) -> bool:
        if isinstance(here, fx.Node) and isinstance(there, fx.Node):
            if here in inside:
                return inside[here] is there
            return there not in own and outside.setdefault(here, there) is there
        if type(here) is not type(there) or isinstance(here, torch.SymInt | torch.SymFloat):
            return False
        if isinstance(here, tuple | list):
            return len(here) == len(there) and all(map(same, here, there))
        if isinstance(here, Mapping):
            return here.keys() == there.keys() and all(
                same(here[each], there[each]) for each in here
            )
        if isinstance(here, slice):
            return all(same(getattr(here, end), getattr(there, end)) for end in _SLICE)
        return repr(here) == repr(there) if isinstance(here, float) else bool(here == there)

    for here, there in inside.items():
        if _modules_inside(here, first) != _modules_inside(there, other):
            return None
        if not same(here.args, there.args) or not same(here.kwargs, there.kwargs):
            return None
    pairs = [(here, there) for here, there in outside.items() if here is not there]
    if len(set(outside.values())) < len(outside):
        return None
    if not all(_alike(here.meta.get("val"), there.meta.get("val")) for here, there in pairs):
        return None
    given = (layer.nodes[place] for layer in (first, other) for place in layer.used)
    return outside if all(isinstance(each.meta.get("val"), Tensor) for each in given) else None


def _modules_inside(node: fx.Node, layer: _Layer) -> list[tuple[str, Any]]:
    """Paths from a layer to the modules of a node, and their classes: they name it in reports."""
    own = _CALL.sub("", layer.path)
    stack = (node.meta.get("nn_module_stack") or {}).values()
    paths = ((_CALL.sub("", path), kind) for path, kind in stack)
    return [(path[len(own) :], kind) for path, kind in paths if f"{path}.".startswith(f"{own}.")]


_SLICE: Final = ("start", "stop", "step")


def _alike(here: Any, there: Any) -> bool:
    """Whether two tensors are of the same type and the same extents, as expressions."""
    return (
        isinstance(here, Tensor)
        and isinstance(there, Tensor)
        and (here.dtype, here.device) == (there.dtype, there.device)
        and str((*here.shape, here.stride())) == str((*there.shape, there.stride()))
    )


def _reduced(graph: fx.Graph, kinds: Sequence[_Kind]) -> fx.Graph:
    """The graph with one layer of each kind; each other layer is what it reads and gives."""
    made, values = fx.Graph(), dict[fx.Node, fx.Node]()
    firsts = {kind.first.nodes[0]: number for number, kind in enumerate(kinds)}
    others = {
        layer.nodes[0]: (number, index)
        for number, kind in enumerate(kinds)
        for index, (layer, _) in enumerate(kind.others)
    }
    left_out = {node for kind in kinds for layer, _ in kind.others for node in layer.nodes}
    left: dict[tuple[int, int], fx.Node] = {}
    read: dict[fx.Node, fx.Node] = {}
    last: dict[fx.Node, int] = {kind.first.nodes[-1]: i for i, kind in enumerate(kinds)}

    def marked(operator: Any, node: fx.Node, *arguments: Any) -> fx.Node:
        mark = made.call_function(operator, arguments)
        mark.meta["val"] = node.meta["val"]
        return mark

    for node in graph.nodes:
        if node in others:
            number, index = others[node]
            layer, there = kinds[number].others[index]
            taken = [values[there[each]] for each in kinds[number].entering]
            for place in kinds[number].leaving:
                given = layer.nodes[place]
                like = left[number, place]
                values[given] = marked(_REPEATED, given, like, taken, number, index, place)
        if node in left_out:
            continue
        if node in firsts:
            number = firsts[node]
            for place, each in enumerate(kinds[number].entering):
                read[each] = marked(_ENTERING, each, values[each], number, place)
        values[node] = made.node_copy(node, ChainMap(read, values).__getitem__)
        if node in last:
            number = last[node]
            read = {}
            for place in kinds[number].leaving:
                given = kinds[number].first.nodes[place]
                left[number, place] = marked(_LEAVING, given, values[given], number, place)
                values[given] = left[number, place]
    return made


def _restored(graph: fx.Graph, kinds: Sequence[_Kind]) -> fx.Graph:
    """The decomposed graph with all layers, its nodes named as if all had been decomposed."""
    made = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    entering: dict[int, dict[fx.Node, int]] = {number: {} for number in range(len(kinds))}
    leaving: dict[tuple[int, int], fx.Node] = {}
    inside: dict[int, list[fx.Node]] = {}
    repeated: dict[tuple[int, int], dict[fx.Node, fx.Node]] = {}
    open_kind = -1
    for node in graph.nodes:
        if node.target is _ENTERING:
            value, number, place = node.args
            entering[number][node] = place
            values[node] = values[value]
            inside[number], open_kind = [], number
        elif node.target is _LEAVING:
            value, number, place = node.args
            values[node], leaving[number, place] = values[value], value
            open_kind = -1
        elif node.target is _REPEATED:
            _, taken, number, index, place = node.args
            if (number, index) not in repeated:
                first, layer = kinds[number].first, kinds[number].others[index][0]
                own = {each: values[taken[at]] for each, at in entering[number].items()}
                for each in inside[number]:
                    own[each] = _copy(made, each, ChainMap(own, values), first.path, layer.path)
                repeated[number, index] = own
            given = leaving[number, place]
            values[node] = repeated[number, index].get(given) or values[given]
        else:
            values[node] = _copy(made, node, values)
            if open_kind >= 0:
                inside[open_kind].append(node)
    return made


def _copy(
    graph: fx.Graph,
    node: fx.Node,
    values: Mapping[fx.Node, fx.Node],
    old: str = "",
    new: str = "",
) -> fx.Node:
    """A node in another graph; modules at `old` become those at `new`."""
    made = graph.create_node(
        node.op,
        node.target,
        fx.node.map_arg(node.args, values.__getitem__),
        fx.node.map_arg(node.kwargs, values.__getitem__),
        node.name if node.op != "call_function" else _NUMBER.sub("", node.name),
        node.type,
    )
    made.meta = dict(node.meta)
    stack = node.meta.get("nn_module_stack")
    if old and stack:
        made.meta["nn_module_stack"] = {
            key: (new + path[len(old) :] if f"{path}.".startswith(f"{old}.") else path, kind)
            for key, (path, kind) in stack.items()
        }
    return made


def _with_graph(
    program: torch.export.ExportedProgram, graph: fx.Graph
) -> torch.export.ExportedProgram:
    """The program with another graph of the same placeholders and as many results."""
    results = graph.output_node().args[0]
    signature = program.graph_signature
    outputs = [
        replace(spec, arg=replace(spec.arg, name=result.name))
        if isinstance(result, fx.Node)
        else spec
        for spec, result in zip(signature.output_specs, results, strict=True)  # type: ignore[arg-type]
    ]
    return program._update(
        fx.GraphModule(program.graph_module, graph),
        ExportGraphSignature(list(signature.input_specs), outputs),
    )
