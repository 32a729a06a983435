"""LSTM, GRU and RNN nodes of an ONNX model written out step by step.

The extents of a model are fixed, so a sequence has a known number of steps; TVM's importer has no
such nodes. The formulas are those of ONNX's own definition. A node that has what is not written
out, such as lengths of its sequences, stays and is refused by its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tapml.models.onnx_written import Written

Array = npt.NDArray[Any]

_GATES: Final = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ACTIVATIONS: Final = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
    "GRU": ("Sigmoid", "Tanh"),
    "RNN": ("Tanh",),
}
_KNOWN: Final = frozenset({"Sigmoid", "Tanh", "Relu"})
_DIRECTIONS: Final = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
# Operators take sizes and axes as inputs from here on.
_OLDEST_OPSET: Final = 13
_MOST_STEPS: Final = 4096


def has_recurrent(model: Any) -> bool:
    """Whether a model has a node of these."""
    return any(node.op_type in _GATES for node in model.graph.node)


def write_out_recurrent(model: Any) -> bool:
    """Replace what can be written out, in place; whether anything was."""
    import onnx

    opset = next((e.version for e in model.opset_import if e.domain in ("", "ai.onnx")), 0)
    if opset < _OLDEST_OPSET or not has_recurrent(model):
        return False
    inferred = onnx.shape_inference.infer_shapes(model)
    graph = inferred.graph
    shapes = {
        each.name: [dim.dim_value for dim in each.type.tensor_type.shape.dim]
        for each in (*graph.value_info, *graph.input, *graph.output)
    }
    weights = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    nodes, changed = [], False
    for node in model.graph.node:
        layer = _layer_of(node, shapes, weights) if node.op_type in _GATES else None
        if layer is None:
            nodes.append(node)
            continue
        written = Written(node.name or node.output[0])
        _write(layer, written)
        nodes += written.nodes
        model.graph.initializer.extend(written.weights)
        changed = True
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return changed


@dataclass(frozen=True)
class _Layer:
    """A node with its attributes, its weights, and the extents of its sequence."""

    kind: str
    source: str
    steps: int
    batch: int
    hidden: int
    directions: tuple[bool, ...]
    activations: tuple[str, ...]
    weight: Array
    recurrence: Array
    bias: Array
    initial: tuple[str, ...]
    batch_first: bool
    reset_after: bool
    outputs: tuple[str, ...]


def _layer_of(node: Any, shapes: Any, weights: Any) -> _Layer | None:
    """What a node computes; None if it is not written out."""
    import onnx

    kind, gates = node.op_type, _GATES[node.op_type]
    given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    inputs = [*node.input, *[""] * (8 - len(node.input))]
    shape = shapes.get(inputs[0])
    # Lengths of sequences, and peepholes.
    if not shape or not all(shape) or inputs[4] or inputs[7]:
        return None
    if given.get("clip") or given.get("input_forget"):
        return None
    if inputs[1] not in weights or inputs[2] not in weights:
        return None
    if inputs[3] and inputs[3] not in weights:
        return None
    directions = _DIRECTIONS.get((given.get("direction") or b"forward").decode())
    hidden = int(weights[inputs[2]].shape[-1])
    batch_first = bool(given.get("layout"))
    steps, batch = (shape[1], shape[0]) if batch_first else (shape[0], shape[1])
    if directions is None or steps > _MOST_STEPS:
        return None
    activations = tuple(each.decode() for each in given.get("activations") or ())
    activations = activations or _ACTIVATIONS[kind] * len(directions)
    if not _KNOWN.issuperset(activations):
        return None
    weight = weights[inputs[1]]
    empty = np.zeros((len(directions), 2 * gates * hidden), weight.dtype)
    return _Layer(
        kind=kind,
        source=inputs[0],
        steps=steps,
        batch=batch,
        hidden=hidden,
        directions=directions,
        activations=activations,
        weight=weight,
        recurrence=weights[inputs[2]],
        bias=weights[inputs[3]] if inputs[3] else empty,
        initial=tuple(inputs[5:7]) if kind == "LSTM" else (inputs[5],),
        batch_first=batch_first,
        reset_after=bool(given.get("linear_before_reset")),
        outputs=tuple(node.output),
    )


def _write(layer: _Layer, written: Written) -> None:
    source, count = layer.source, len(layer.directions)
    if layer.batch_first:
        source = written.one("Transpose", source, perm=(1, 0, 2))
    states = [_initial(layer, written, name) for name in layer.initial]
    rows: list[str] = []
    last: list[list[str]] = [[] for _ in states]
    for number, backward in enumerate(layer.directions):
        kinds = layer.activations[number * len(layer.activations) // count :]
        step = _STEPS[layer.kind](layer, written, number, kinds)
        pieces = written.parts(step.first(source), [1] * layer.steps, 0)
        values = [state[number] for state in states]
        found = []
        for piece in reversed(pieces) if backward else pieces:
            values = step.next(piece, values)
            found.append(values[0])
        whole = written.joined(found[::-1] if backward else found, 0)
        rows.append(written.one("Unsqueeze", whole, written.weight(np.array([1], np.int64))))
        for index, value in enumerate(values):
            last[index].append(value)
    results = [written.joined(rows, 1), *(written.joined(each, 0) for each in last)]
    if layer.batch_first:
        orders = [(2, 0, 1, 3), *[(1, 0, 2)] * len(last)]
        results = [
            written.one("Transpose", each, perm=order)
            for each, order in zip(results, orders, strict=True)
        ]
    for name, value in zip(layer.outputs, results, strict=False):
        written.result(value, name)


def _initial(layer: _Layer, written: Written, name: str) -> list[str]:
    """A state before the first step, ``[1, batch, hidden]`` for each direction."""
    count = len(layer.directions)
    if not name:
        zeros = np.zeros((1, layer.batch, layer.hidden), layer.weight.dtype)
        return [written.weight(zeros)] * count
    if layer.batch_first:
        name = written.one("Transpose", name, perm=(1, 0, 2))
    return written.parts(name, [1] * count, 0)


class _Step:
    """One step of a direction: ``gates(x W^T + h R^T + b)`` in the order of ONNX."""

    def __init__(self, layer: _Layer, written: Written, number: int, kinds: Sequence[str]) -> None:
        self.written, self.kinds, self.hidden = written, kinds, layer.hidden
        self.gates = _GATES[layer.kind]
        self.reset_after = layer.reset_after
        self.weight = layer.weight[number]
        self.recurrence = layer.recurrence[number]
        self.of_input, self.of_state = np.split(layer.bias[number], 2)
        self._prepare()

    def _prepare(self) -> None:
        self.matrix = self.written.weight(self.recurrence.T)
        self.of_input = self.of_input + self.of_state

    def first(self, source: str) -> str:
        """What all steps read of the source, in one product."""
        product = self.written.one("MatMul", source, self.written.weight(self.weight.T))
        return self.written.one("Add", product, self.written.weight(self.of_input))

    def next(self, piece: str, values: list[str]) -> list[str]:
        """The states after a step; the first is its output."""
        total = self.written.one("Add", piece, self.written.one("MatMul", values[0], self.matrix))
        return [self.written.one(self.kinds[0], total)]

    def split(self, value: str, count: int) -> list[str]:
        """The gates in a row."""
        return self.written.parts(value, [self.hidden] * count, 2)


class _LongShort(_Step):
    def next(self, piece: str, values: list[str]) -> list[str]:
        one, (gate, cell, out) = self.written.one, self.kinds[:3]
        state, memory = values
        total = one("Add", piece, one("MatMul", state, self.matrix))
        entry, output, forget, candidate = self.split(total, 4)
        kept = one("Mul", one(gate, forget), memory)
        added = one("Mul", one(gate, entry), one(cell, candidate))
        memory = one("Add", kept, added)
        return [one("Mul", one(gate, output), one(out, memory)), memory]


class _Gated(_Step):
    def _prepare(self) -> None:
        both = 2 * self.hidden
        bias = self.of_state.copy()
        if self.reset_after:
            bias[both:] = 0
        self.of_input = self.of_input + bias
        self.matrix = self.written.weight(self.recurrence[:both].T)
        self.inner = self.written.weight(self.recurrence[both:].T)
        self.inner_bias = self.written.weight(self.of_state[both:])
        self.one_value = self.written.weight(np.ones((), self.weight.dtype))

    def next(self, piece: str, values: list[str]) -> list[str]:
        one, (gate, cell) = self.written.one, self.kinds[:2]
        (state,) = values
        update, reset, candidate = self.split(piece, 3)
        moved = self.split(one("MatMul", state, self.matrix), 2)
        update = one(gate, one("Add", update, moved[0]))
        reset = one(gate, one("Add", reset, moved[1]))
        if self.reset_after:
            inner = one("Add", one("MatMul", state, self.inner), self.inner_bias)
            inner = one("Mul", reset, inner)
        else:
            inner = one("MatMul", one("Mul", reset, state), self.inner)
        candidate = one(cell, one("Add", candidate, inner))
        new = one("Mul", one("Sub", self.one_value, update), candidate)
        return [one("Add", new, one("Mul", update, state))]


_STEPS: Final[dict[str, type[_Step]]] = {"LSTM": _LongShort, "GRU": _Gated, "RNN": _Step}
