"""Mutants of a torch module's recorded program, in a process that imports PyTorch.

The same edits as of an ONNX model (:mod:`~tapml.comparing.fuzzing.mutants`). A layer is an
operation of one value to one value of its shape; what else it reads are weights and numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

JOB: Final = f"{__name__}:make"
ACTIVATIONS: Final = ("relu", "sigmoid", "tanh", "elu", "selu", "leaky_relu", "hardsigmoid",
                      "softplus", "silu", "gelu", "relu6", "hardswish", "mish")  # fmt: skip


def make(payload: dict[str, Any]) -> str:
    """Write a mutant: ``model``, ``edits``, ``arrays`` and the folder ``made``; why it is none.

    The mutant is recorded for the shapes of the arrays, but for the number of instances; of a
    model that fixes that number, for as many.
    """
    import torch

    from tapml.backends.steps import filled
    from tapml.backends.torch_graph import TorchGraph
    from tapml.importing.recording import record_module

    graph = TorchGraph(Path(payload["model"]))
    part = graph.whole()
    # What torch.export gives refuses to be recorded again, a module of its graph does not.
    edited = torch.fx.Graph()
    edited.output(edited.graph_copy(part.module.graph, {}))
    for number, (kind, place, choice) in enumerate(payload["edits"]):
        _EDITS[kind](edited, place, choice, number)
    module = torch.fx.GraphModule(part.module, edited)
    names = [each.name for each in graph.inputs()]
    given = filled(
        {name: np.asarray(payload["arrays"][name]) for name in names},
        next(iter(graph.inputs()[0].shape), None),
    )
    dynamic = [{0: "batch"} if each.shape[:1] == (None,) else None for each in graph.inputs()]
    try:
        with torch.no_grad():
            model = record_module(
                module, part.tensors(given), dynamic,
                name="mutant", samples=[], measure="values", labels=(),
            )  # fmt: skip
    except Exception as error:  # Of any class, from an operation that does not take its new input.
        return str(error).strip().partition("\n")[0][:200] or type(error).__name__
    model.save(payload["made"])
    return ""


def _activations(graph: Any) -> list[Any]:
    return [each for each in _layers(graph) if _name(each) in ACTIVATIONS]


def _swap_activation(graph: Any, place: int, choice: int, number: int) -> None:
    import torch

    del number
    found = _activations(graph)
    if found:
        node = found[place % len(found)]
        others = [each for each in ACTIVATIONS if each != _name(node)]
        node.target = getattr(torch.ops.aten, others[choice % len(others)]).default
        node.args, node.kwargs = node.args[:1], {}


def _remove(graph: Any, place: int, choice: int, number: int) -> None:
    del choice, number
    found = _layers(graph)
    if found:
        node = found[place % len(found)]
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)


def _double(graph: Any, place: int, choice: int, number: int) -> None:
    del choice
    found = _layers(graph)
    if found:
        node = found[place % len(found)]
        _put_after(graph, node, node, number)


def _reorder(graph: Any, place: int, choice: int, number: int) -> None:
    """Take a layer out and put it behind another."""
    found = _layers(graph)
    if len(found) < 2:
        return
    node = found[place % len(found)]
    others = [each for each in found if each is not node]
    _put_after(graph, others[choice % len(others)], node, number)
    node.replace_all_uses_with(node.args[0])
    graph.erase_node(node)


def _put_after(graph: Any, node: Any, layer: Any, number: int) -> None:
    """A copy of a layer behind a node, whose readers read the copy."""
    readers = list(node.users)
    with graph.inserting_after(node):
        copy = graph.create_node(
            layer.op, layer.target, (node, *layer.args[1:]), dict(layer.kwargs),
            name=f"{layer.name}_mutant{number}",
        )  # fmt: skip
    copy.meta = dict(layer.meta)
    for each in readers:
        each.replace_input_with(node, copy)


def _layers(graph: Any) -> list[Any]:
    """Operations of one value to one value of its shape and dtype; nothing that writes in place."""

    def weights(each: Any) -> bool:
        return all(other.op == "get_attr" for other in each.all_input_nodes[1:])

    return [
        each
        for each in graph.nodes
        if each.op == "call_function"
        and each.args
        and hasattr(each.args[0], "meta")
        and each.all_input_nodes[:1] == [each.args[0]]
        and weights(each)
        and not getattr(getattr(each.target, "_schema", None), "is_mutable", True)
        and _form(each) is not None
        and _form(each) == _form(each.args[0])
    ]


def _form(node: Any) -> tuple[Any, Any] | None:
    value = node.meta.get("val")
    return (value.shape, value.dtype) if hasattr(value, "shape") else None


def _name(node: Any) -> str:
    return str(getattr(node.target, "__name__", "")).partition(".")[0]


_EDITS: Final[dict[str, Callable[[Any, int, int, int], None]]] = {
    "activation": _swap_activation,
    "removed": _remove,
    "doubled": _double,
    "reordered": _reorder,
}
