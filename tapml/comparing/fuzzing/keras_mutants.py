"""Mutants of a Keras model: the calls of its layers, made again with edits.

The same edits as of an ONNX model (:mod:`~tapml.comparing.fuzzing.mutants`), in a process that
imports Keras. Layers are called again, so that a doubled or moved one has its own weights. What is
in a model that is used as a layer stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tapml.backends.keras_loading import load_keras

JOB: Final = f"{__name__}:make"
ACTIVATIONS: Final = ("relu", "sigmoid", "tanh", "elu", "selu", "leaky_relu", "hard_sigmoid",
                      "softplus", "softsign", "silu", "gelu", "relu6")  # fmt: skip
_ACTIVATION_LAYERS: Final = ("Activation", "ReLU", "ELU", "LeakyReLU")


class _Step:
    """One call, and the layers that run in its place, in order."""

    def __init__(self, node: Any) -> None:
        self.node = node
        self.layers = [node.operation]
        tensors = [*node.input_tensors, *node.outputs]
        one = len(node.input_tensors) == len(node.outputs) == 1
        self.is_layer = one and tensors[0].dtype == tensors[1].dtype
        self.keeps_shape = self.is_layer and tensors[0].shape == tensors[1].shape


def make(payload: dict[str, Any]) -> str:
    """Write a mutant: ``model``, ``edits`` and the path ``made``; why it cannot be, or empty.

    What a layer refuses, as it has another shape at its new place, makes no mutant.
    """
    import keras

    model = load_keras(Path(payload["model"]))
    function = getattr(model, "_functional", None) or model
    if not hasattr(function, "_nodes_by_depth"):
        return "neither a functional nor a sequential model"
    steps = [
        _Step(node)
        for depth in sorted(function._nodes_by_depth, reverse=True)
        for node in function._nodes_by_depth[depth]
        if not node.is_input
    ]
    for kind, place, choice in payload["edits"]:
        _EDITS[kind](keras, steps, place, choice)
    try:
        mutant = keras.Model(model.inputs, _called(steps, function))
    except Exception as error:  # Of any class, from a layer that does not take its new input.
        return str(error).strip().partition("\n")[0][:200] or type(error).__name__
    mutant.save(payload["made"])
    return ""


def _called(steps: Sequence[_Step], function: Any) -> list[Any]:
    known = {id(each): each for each in function.inputs}
    for step in steps:
        arguments = step.node.arguments
        given = {id(each): known[id(each)] for each in arguments.keras_tensors}
        if step.layers[:1] == [step.node.operation]:
            positional, named = arguments.fill_in(given)
            made = step.node.operation(*positional, **named)
            rest = step.layers[1:]
        else:
            made, rest = given[id(step.node.input_tensors[0])], step.layers
        for layer in rest:
            made = layer(made)
        outputs = made if isinstance(made, list | tuple) else [made]
        known |= {id(old): new for old, new in zip(step.node.outputs, outputs, strict=True)}
    return [known[id(each)] for each in function.outputs]


def _swap_activation(keras: Any, steps: Sequence[_Step], place: int, choice: int) -> None:
    found = [
        each
        for each in steps
        if type(each.node.operation).__name__ in _ACTIVATION_LAYERS
        or (hasattr(each.node.operation, "activation") and each.is_layer)
    ]
    if not found:
        return
    step = found[place % len(found)]
    layer = step.node.operation
    old = getattr(getattr(layer, "activation", None), "__name__", "relu")
    others = [each for each in ACTIVATIONS if each != old]
    chosen = others[choice % len(others)]
    if hasattr(layer, "activation"):
        layer.activation = keras.activations.get(chosen)
    else:
        step.layers[0] = keras.layers.Activation(chosen)


def _remove(keras: Any, steps: Sequence[_Step], place: int, choice: int) -> None:
    del keras, choice
    found = [each for each in steps if each.keeps_shape and each.layers]
    if found:
        found[place % len(found)].layers.pop(0)


def _double(keras: Any, steps: Sequence[_Step], place: int, choice: int) -> None:
    del keras, choice
    found = [each for each in steps if each.keeps_shape and each.layers]
    if found:
        step = found[place % len(found)]
        step.layers.append(step.layers[-1])


def _reorder(keras: Any, steps: Sequence[_Step], place: int, choice: int) -> None:
    """Take a layer out and put it behind another."""
    del keras
    found = [each for each in steps if each.keeps_shape and each.layers]
    behind = [each for each in steps if each.is_layer]
    if found and len(behind) > 1:
        step = found[place % len(found)]
        others = [each for each in behind if each is not step]
        others[choice % len(others)].layers.append(step.layers.pop(0))


_EDITS: Final[dict[str, Callable[[Any, Sequence[_Step], int, int], None]]] = {
    "activation": _swap_activation,
    "removed": _remove,
    "doubled": _double,
    "reordered": _reorder,
}
