"""Mutants of an ONNX model: activations swapped, layers removed, doubled and reordered.

After LEMON (Wang et al., ESEC/FSE 2020) and Audee (Guo et al., ASE 2020). The weights stay, so that
a mutant computes much like the model. A layer may be removed, doubled or moved where that keeps all
shapes, which shape inference says afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

ACTIVATIONS: Final = (
    "Relu", "Sigmoid", "Tanh", "Elu", "Selu", "LeakyRelu", "HardSigmoid", "Softplus", "Softsign",
    "HardSwish", "Celu", "ThresholdedRelu",
)  # fmt: skip
Edit: TypeAlias = tuple[str, int, int]
"""One of :data:`KINDS`, a place and a choice: any whole numbers, taken modulo what there is."""


def mutated(model: Any, edits: Sequence[Edit]) -> Any:
    """A copy of an ONNX model with edits, one after the other; what fits nowhere changes nothing.

    Parameters
    ----------
    model
        An ``onnx.ModelProto``.
    """
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    # Types of values that the model's file states may be wrong for a mutant.
    del copy.graph.value_info[:]
    for number, (kind, place, choice) in enumerate(edits):
        _EDITS[kind](copy.graph, place, choice, f"mutant{number}")
    return copy


def _swap_activation(graph: Any, place: int, choice: int, name: str) -> None:
    del name
    found = [each for each in graph.node if each.op_type in ACTIVATIONS and not each.domain]
    if found:
        node = found[place % len(found)]
        others = [each for each in ACTIVATIONS if each != node.op_type]
        node.op_type = others[choice % len(others)]
        del node.attribute[:]


def _remove(graph: Any, place: int, choice: int, name: str) -> None:
    del choice, name
    outputs = {each.name for each in graph.output}
    found = [each for each in _layers(graph) if each.output[0] not in outputs]
    if found:
        node = found[place % len(found)]
        _read_instead(graph, node.output[0], node.input[0])
        graph.node.remove(node)


def _double(graph: Any, place: int, choice: int, name: str) -> None:
    del choice
    found = _layers(graph)
    if found:
        node = found[place % len(found)]
        _put_after(graph, node, node, name)


def _reorder(graph: Any, place: int, choice: int, name: str) -> None:
    """Take a layer out and put it behind another."""
    outputs = {each.name for each in graph.output}
    found = [each for each in _layers(graph) if each.output[0] not in outputs]
    if len(found) < 2:
        return
    node = found[place % len(found)]
    behind = [each for each in found if each.output[0] != node.output[0]]
    target = behind[choice % len(behind)]
    _read_instead(graph, node.output[0], node.input[0])
    moved = type(node)()
    moved.CopyFrom(node)
    graph.node.remove(node)
    _put_after(graph, target, moved, name)


def _put_after(graph: Any, node: Any, layer: Any, name: str) -> None:
    """A copy of a layer behind a node, whose readers read the copy."""
    copy = type(layer)()
    copy.CopyFrom(layer)
    value = node.output[0]
    copy.name = copy.output[0] = f"{value}_{name}"
    place = next(at for at, each in enumerate(graph.node) if value in each.output)
    if value in {each.name for each in graph.output}:
        # The output keeps its name: the node gives another one.
        copy.output[0], inner = value, f"{value}_{name}"
        graph.node[place].output[0] = inner
        _read_instead(graph, value, inner)
        copy.input[0] = inner
    else:
        _read_instead(graph, value, copy.output[0])
        copy.input[0] = value
    graph.node.insert(place + 1, copy)


def _read_instead(graph: Any, old: str, new: str) -> None:
    for node in graph.node:
        for at, name in enumerate(node.input):
            if name == old:
                node.input[at] = new


def _layers(graph: Any) -> list[Any]:
    """Nodes of one value to one value, whose other inputs are weights."""
    weights = {each.name for each in graph.initializer}
    weights |= {each.output[0] for each in graph.node if each.op_type == "Constant"}
    return [
        each
        for each in graph.node
        if len(each.output) == 1
        and each.input
        and each.input[0] not in weights
        and all(not name or name in weights for name in each.input[1:])
        and not any(attribute.HasField("g") for attribute in each.attribute)
    ]


_EDITS: Final[dict[str, Callable[[Any, int, int, str], None]]] = {
    "activation": _swap_activation,
    "removed": _remove,
    "doubled": _double,
    "reordered": _reorder,
}
KINDS: Final = tuple(_EDITS)
