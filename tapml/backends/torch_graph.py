"""A torch module's program as nodes, and modules made of its parts.

A node is named as in the program; of a language model, ``LAYER/NODE`` with the layer's path.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import fx
from torch.utils import _pytree

from tapml.backends.runner import Array, Node
from tapml.backends.torch_program import read_program
from tapml_targets.errors import UnsupportedOperatorError

_NUMPY: Final = frozenset(
    (
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.uint16, torch.uint32, torch.uint64,
        torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    )
)  # fmt: skip
"""What NumPy has, too; the rest becomes float32."""


@dataclass(frozen=True)
class TorchPart:
    """A module of tensors in order, to a tuple of tensors.

    Attributes
    ----------
    module
        The graph, with the weights it uses.
    inputs
        The dtype of every input by its name, ``node`` or ``node:1`` for the second that it returns.
    outputs
        Names of the values.
    """

    module: fx.GraphModule
    inputs: Mapping[str, torch.dtype]
    outputs: tuple[str, ...]

    def tensors(self, arrays: Mapping[str, Array]) -> tuple[torch.Tensor, ...]:
        """The arguments of the module; NumPy holds a bfloat16 as float32."""
        return tuple(
            torch.from_numpy(arrays[name].copy()).to(dtype) for name, dtype in self.inputs.items()
        )

    def run(self, function: Callable[..., Any], arrays: Mapping[str, Array]) -> list[Array]:
        """What a function that stands for the module gives, tensor by tensor."""
        with torch.no_grad():
            leaves = _pytree.tree_leaves(function(*self.tensors(arrays)))
            return [(each if each.dtype in _NUMPY else each.float()).numpy() for each in leaves]


class TorchGraph:
    """A module's program, read.

    Raises
    ------
    InputError
        If the folder holds no such module.
    """

    def __init__(self, folder: Path) -> None:
        program = read_program(folder)
        self._module = program.module
        self.inputs = program.inputs
        nodes = [each for each in self._module.graph.nodes if _is_step(each)]
        self._names = {
            each: (_layered(each) if program.layered else each.name)
            for each in self._module.graph.nodes
        }
        self._nodes = {self._names[each]: each for each in nodes}
        self._values = {name: _values_of(each, name) for name, each in self._nodes.items()}
        given = [each for each in self._module.graph.nodes if each.op == "placeholder"]
        names = [each.name for each in self.inputs()]
        self._given = dict(zip(given, names, strict=True))
        self._dtypes = {name: each.meta["val"].dtype for each, name in self._given.items()}
        self._mutates = writes(self._module)
        (end,) = (each for each in self._module.graph.nodes if each.op == "output")
        self.outputs = [self._name_of(each) for each in end.all_input_nodes]

    def nodes(self) -> list[Node]:
        """Every operation that gives tensors."""
        return [
            Node(
                name,
                str(getattr(each.target, "__name__", each.target)).partition(".")[0],
                tuple(self._place_of(source) for source in self._sources(each)),
            )
            for name, each in self._nodes.items()
        ]

    def whole(self) -> TorchPart:
        """The program."""
        return TorchPart(self._module, self._dtypes, tuple(self.outputs))

    def names_of(self, part: TorchPart) -> list[str]:
        """The names of a part's outputs."""
        return list(part.outputs)

    def with_all_outputs(self, *, computed: bool = False) -> TorchPart:
        """The program with every value as an output."""
        del computed
        return self._with_outputs(self._nodes)

    def until(self, name: str) -> TorchPart:
        """The program as far as an operation."""
        part = self._with_outputs([name])
        if not self._mutates:
            part.module.graph.eliminate_dead_code()
            part.module.recompile()
        return part

    def _with_outputs(self, names_of_nodes: Iterable[str]) -> TorchPart:
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        graph.graph_copy(self._module.graph, copies)
        results, names = [], []
        for name in names_of_nodes:
            node = self._nodes[name]
            last = copies[node]
            for place, value in enumerate(self._values[name]):
                item = copies[node]
                if _is_tuple(node):
                    with graph.inserting_after(last):
                        item = last = graph.call_function(operator.getitem, (item, place))
                if self._mutates:  # Before a later operation writes in its place.
                    with graph.inserting_after(last):
                        item = last = graph.call_function(torch.ops.aten.clone.default, (item,))
                results.append(item)
                names.append(value)
        graph.output(tuple(results))
        return TorchPart(fx.GraphModule(self._module, graph), self._dtypes, tuple(names))

    def alone(self, name: str, inputs: Sequence[Array]) -> tuple[TorchPart, dict[str, Array]]:
        """A module of one operation, and its inputs by name."""
        node = self._nodes[name]
        sources = self._sources(node)
        sizes = _sizes(sources, inputs)
        graph = fx.Graph()
        known = {each: graph.placeholder(f"given_{at}") for at, each in enumerate(sources)}

        def argument(each: fx.Node) -> Any:
            if each in known:
                return known[each]
            if each.op == "get_attr":
                known[each] = graph.get_attr(str(each.target))
                return known[each]
            return _size(each, sizes, name)

        made = graph.call_function(
            node.target,
            fx.node.map_arg(node.args, argument),
            fx.node.map_arg(node.kwargs, argument),
        )
        values = self._values[name]
        graph.output(
            tuple(graph.call_function(operator.getitem, (made, at)) for at in range(len(values)))
            if _is_tuple(node)
            else (made,)
        )
        dtypes = {self._name_of(each): each.meta["val"].dtype for each in sources}
        part = TorchPart(fx.GraphModule(self._module, graph), dtypes, tuple(values))
        return part, dict(zip(dtypes, inputs, strict=True))

    def save_alone(
        self, name: str, inputs: Sequence[Array], folder: Path
    ) -> tuple[str, dict[str, Array]]:
        """Write ``layer``, the folder of a module of one operation; its name, its inputs by name.

        Raises
        ------
        UnsupportedOperatorError
            If PyTorch cannot record the operation alone.
        """
        from tapml.importing.recording import record_module

        part, given = self.alone(name, inputs)
        try:
            with torch.no_grad():
                model = record_module(
                    part.module, part.tensors(given), None, name="layer",
                    samples=[], measure="values", labels=(),
                )  # fmt: skip
        except Exception as error:  # Of any class, from what the operation is.
            line = str(error).strip().partition("\n")[0][:200]
            raise UnsupportedOperatorError(f"{name} cannot be recorded alone: {line}") from error
        model.save(folder / "layer")
        arrays = [each.name for each in model.stored.inputs]
        return "layer", dict(zip(arrays, given.values(), strict=True))

    def by_node(self, values: Mapping[str, Array]) -> dict[str, list[Array]]:
        """Values by node."""
        return {
            name: [values[each] for each in names]
            for name, names in self._values.items()
            if all(each in values for each in names)
        }

    def _sources(self, node: fx.Node) -> list[fx.Node]:
        """The tensors that a node reads, without weights."""
        return [
            each
            for each in node.all_input_nodes
            if each in self._given or self._names[each] in self._nodes or _is_item(each)
        ]

    def _place_of(self, value: fx.Node) -> tuple[str, int]:
        if value in self._given:
            return self._given[value], 0
        if _is_item(value):
            whole: Any = value.args
            return self._names[whole[0]], int(whole[1])
        return self._names[value], 0

    def _name_of(self, value: fx.Node) -> str:
        name, place = self._place_of(value)
        return f"{name}:{place}" if place else name


def writes(module: fx.GraphModule) -> bool:
    """Whether an operation of a program writes in place."""
    return any(
        getattr(getattr(each.target, "_schema", None), "is_mutable", False)
        for each in module.graph.nodes
    )


def _is_item(node: fx.Node) -> bool:
    return node.target is operator.getitem and isinstance(node.args[0], fx.Node)


def _is_step(node: fx.Node) -> bool:
    """Whether a node computes tensors; sizes and assertions do not."""
    found = node.meta.get("val")
    tensors = found if isinstance(found, tuple | list) else [found]
    return (
        node.op == "call_function"
        and not _is_item(node)
        and bool(tensors)
        and all(isinstance(each, torch.Tensor) for each in tensors)
    )


def _is_tuple(node: fx.Node) -> bool:
    return isinstance(node.meta["val"], tuple | list)


def _layered(node: fx.Node) -> str:
    """The node's name below the path of the innermost module that it belongs to."""
    modules = list(node.meta.get("nn_module_stack", {}).values())
    path = str(modules[-1][0]).partition(".")[2] if modules else ""
    return f"{path}/{node.name}" if path else node.name


def _values_of(node: fx.Node, name: str) -> list[str]:
    count = len(node.meta["val"]) if _is_tuple(node) else 1
    return [f"{name}:{at}" if at else name for at in range(count)]


def _sizes(sources: Sequence[fx.Node], inputs: Sequence[Array]) -> dict[Any, int]:
    """The symbols in the shapes of recorded tensors, from the arrays that stand for them."""
    found = {}
    for source, array in zip(sources, inputs, strict=True):
        for extent, size in zip(source.meta["val"].shape, array.shape, strict=True):
            expression = getattr(getattr(extent, "node", None), "expr", None)
            if expression is not None and expression.is_Symbol:
                found[expression] = size
    return found


def _size(node: fx.Node, sizes: Mapping[Any, int], name: str) -> int:
    value: Any = node.meta.get("val")
    expression: Any = getattr(getattr(value, "node", None), "expr", value)
    try:
        return int(expression.subs(sizes) if hasattr(expression, "subs") else expression)
    except TypeError as error:
        raise UnsupportedOperatorError(
            f"{name} depends on the size {node.name} and cannot run alone"
        ) from error
