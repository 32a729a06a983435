"""``If``, ``Scan`` and ``Loop`` of an ONNX model written out, so that no graph is inside another.

The extents of a model are fixed, so a ``Scan`` has a known number of steps, and so has a ``Loop``
whose count is a constant: their body is repeated. A ``Loop`` that may end earlier keeps what it had
from there on. Of an ``If`` both branches are computed, and ``Where`` takes one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from tapml.models.onnx_written import Array, Written, refused

CONTROL_FLOW: Final = frozenset({"If", "Loop", "Scan"})
_MOST_STEPS: Final = 4096
_MOST_NODES: Final = 1 << 17
_INT32: Final = 6
# bool, int8, int16 and uint16.
_NOT_CHOSEN: Final = frozenset({9, 3, 5, 4})
_Shapes: TypeAlias = Mapping[str, Sequence[int]]


def has_control_flow(model: Any) -> bool:
    """Whether a node of a model has graphs inside."""
    return any(node.op_type in CONTROL_FLOW for node in model.graph.node)


def write_out_control_flow(model: Any, shapes: _Shapes) -> None:
    """Replace the outermost such nodes, in place; there may be others inside of them.

    Parameters
    ----------
    model
        With fixed extents, of opset 13 or later.
    shapes
        Of the values outside of all graphs that are inside of nodes.

    Raises
    ------
    UnsupportedOperatorError
        If the steps of a loop, or the extents of a result, are known only when it runs; the
        message names the node.
    """
    import onnx

    constants = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    constants |= constants_of(model.graph.node)
    nodes: list[Any] = []
    sides: list[tuple[Any, str, str]] = []
    for node in model.graph.node:
        if node.op_type not in CONTROL_FLOW:
            nodes.append(node)
            continue
        written = Written(node.name or node.output[0])
        at = _Node(node, written, constants, shapes)
        _WRITERS[node.op_type](at)
        nodes += written.nodes
        model.graph.initializer.extend(written.weights)
        if len(nodes) > _MOST_NODES:
            raise refused(node, f"it is {len(nodes)} nodes: expected at most {_MOST_NODES}")
        sides += [(node, *each) for each in at.sides]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    _check_sides(model, sides)


def _check_sides(model: Any, sides: Sequence[tuple[Any, str, str]]) -> None:
    """Raise for values of other extents than those they may take the place of."""
    import onnx

    if not sides:
        return
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    found = {each.name: _extents(each) for each in (*inferred.value_info, *inferred.output)}
    found |= {each.name: _extents(each) for each in inferred.input}
    found |= {each.name: list(each.dims) for each in inferred.initializer}
    for node, one, other in sides:
        shapes = found.get(one), found.get(other)
        # Where would make one of both extents of them.
        if None not in shapes and shapes[0] != shapes[1]:
            raise refused(
                node,
                f"{shapes[0]} or {shapes[1]} are the extents of a result, by a condition that is "
                "known only when it runs: export the branch, or the steps, that are needed",
            )


def constants_of(nodes: Sequence[Any]) -> dict[str, Array]:
    """What the nodes ``Constant`` give."""
    import onnx

    found = {}
    for node in nodes:
        if node.op_type == "Constant":
            value = onnx.helper.get_attribute_value(node.attribute[0])
            tensor = isinstance(value, onnx.TensorProto)
            found[node.output[0]] = onnx.numpy_helper.to_array(value) if tensor else np.array(value)
    return found


@dataclass(frozen=True)
class _Node:
    """A node with a graph inside, and what is written for it."""

    node: Any
    written: Written
    constants: Mapping[str, Array]
    shapes: _Shapes
    sides: list[tuple[str, str]] = field(default_factory=list)
    """Pairs of values of which a run takes one."""
    stored: dict[str, str] = field(default_factory=dict)
    """Names of tensors that graphs inside have, which are stored once for all steps."""

    @property
    def given(self) -> dict[str, Any]:
        import onnx

        return {each.name: onnx.helper.get_attribute_value(each) for each in self.node.attribute}

    def constant(self, name: str) -> Array | None:
        return self.constants.get(name)

    def put(self, graph: Any, step: str, values: Mapping[str, str]) -> list[str]:
        """Write the nodes of a graph with `values` as its inputs; the names of its outputs.

        Every value of the graph gets the step's name in front of its own.
        """
        import onnx

        prefix = f"{self.written.name}/{step}"
        names = dict(values)
        names |= self._store(graph)
        for number, node in enumerate(graph.node):
            if node.op_type == "Constant":
                continue
            copied = onnx.NodeProto()
            copied.CopyFrom(node)
            _rename(copied, names, prefix)
            copied.name = f"{prefix}/{node.name or f'{node.op_type}_{number}'}"
            self.written.nodes.append(copied)
        return [names.get(each.name, each.name) for each in graph.output]

    def _store(self, graph: Any) -> dict[str, str]:
        """New names of the tensors of a graph, of which there is one for all steps."""
        import onnx

        tensors = {each.name: each for each in graph.initializer}
        for name, array in constants_of(graph.node).items():
            tensors[name] = onnx.numpy_helper.from_array(np.asarray(array), name)
        names = {}
        for name, each in tensors.items():
            key = f"{self.written.name}/{'_'.join(n.name for n in graph.output)}/{name}"
            if key not in self.stored:
                tensor = onnx.TensorProto()
                tensor.CopyFrom(each)
                tensor.name = key
                self.written.weights.append(tensor)
                self.stored[key] = key
            names[name] = key
        return names

    def chosen(self, condition: str, yes: str, no: str, like: Any) -> str:
        """One of two values of the type of an output of a graph inside."""
        self.sides.append((yes, no))
        element = like.type.tensor_type.elem_type
        one = self.written.one
        if element not in _NOT_CHOSEN:
            return one("Where", condition, yes, no)
        # onnxruntime chooses among few types.
        wide = [one("Cast", each, to=_INT32) for each in (yes, no)]
        return one("Cast", one("Where", condition, *wide), to=element)

    def check_steps(self, graph: Any, steps: int) -> None:
        """Raise if a graph, so many times, has too many nodes."""
        count = steps * len(graph.node)
        if count > _MOST_NODES:
            raise refused(self.node, f"it is {count} nodes: expected at most {_MOST_NODES}")


def _rename(node: Any, names: dict[str, str], prefix: str) -> None:
    """Rename what a node reads, in graphs inside of it as well, and what it gives."""
    node.input[:] = [names.get(each, each) for each in node.input]
    _rename_graphs(node, names)
    for at, each in enumerate(node.output):
        if each:
            names[each] = node.output[at] = f"{prefix}/{each}"


def _rename_graphs(node: Any, names: dict[str, str]) -> None:
    """Rename what the graphs of a node's attributes read from outside."""
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            inner = dict(names)
            for each in (*graph.input, *graph.initializer):
                inner.pop(each.name, None)
            for each in graph.node:
                _rename_inside(each, inner)
            for each in graph.output:
                each.name = inner.get(each.name, each.name)


def _rename_inside(node: Any, names: dict[str, str]) -> None:
    """As :func:`_rename` in a graph inside, whose own values keep their names."""
    node.input[:] = [names.get(each, each) for each in node.input]
    for each in node.output:
        names.pop(each, None)
    _rename_graphs(node, names)


def _if(at: _Node) -> None:
    given, written, (condition,) = at.given, at.written, at.node.input
    known = at.constant(condition)
    if known is not None:
        _take(at, bool(known.any()))
        return
    sides = [at.put(given[name], name.split("_")[0], {}) for name in ("then_branch", "else_branch")]
    outputs = [given[name].output for name in ("then_branch", "else_branch")]
    for name, yes, no, *values in zip(at.node.output, *sides, *outputs, strict=True):
        shapes = [_extents(each) for each in values]
        if None not in shapes and shapes[0] != shapes[1]:
            raise refused(
                at.node,
                f"its branches give {shapes[0]} and {shapes[1]} for {name}, by a condition that is "
                "known only when it runs: export the branch that is needed",
            )
        written.result(at.chosen(condition, yes, no, values[0]), name)


def _take(at: _Node, condition: bool) -> None:
    branch = at.given["then_branch" if condition else "else_branch"]
    for name, value in zip(at.node.output, at.put(branch, "branch", {}), strict=True):
        at.written.result(value, name)


def put_branch(node: Any, condition: bool) -> Written:
    """One branch of an ``If``, written out."""
    written = Written(node.name or node.output[0])
    _take(_Node(node, written, {}, {}), condition)
    return written


def _extents(value: Any) -> list[int] | None:
    """The extents that a graph declares of an output; None if one is free."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    found = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
    return None if -1 in found else found


def _scan(at: _Node) -> None:
    given, written, node = at.given, at.written, at.node
    body, count = given["body"], int(given["num_scan_inputs"])
    states = list(node.input[: len(node.input) - count])
    sources = list(node.input[len(states) :])
    read = given.get("scan_input_axes") or [0] * count
    backwards = given.get("scan_input_directions") or [0] * count
    shapes = [
        at.constants[each].shape if each in at.constants else at.shapes.get(each)
        for each in sources
    ]
    if not shapes or not all(shapes):
        raise refused(node, "the extents of its inputs are known only when it runs")
    steps = {int(shape[axis]) for shape, axis in zip(shapes, read, strict=True) if shape}
    if len(steps) != 1 or not 0 < max(steps) <= _MOST_STEPS:
        raise refused(node, f"it has {sorted(steps)} steps: expected 1 to {_MOST_STEPS}")
    length = steps.pop()
    at.check_steps(body, length)
    columns = [
        _cut(written, source, axis, length, len(shape or ()))
        for source, axis, shape in zip(sources, read, shapes, strict=True)
    ]
    columns = [each[::-1] if back else each for each, back in zip(columns, backwards, strict=True)]
    inputs = [each.name for each in body.input]
    rows: list[list[str]] = [[] for _ in body.output[len(states) :]]
    kept = len(states)
    for step in range(length):
        values = [*states, *(each[step] for each in columns)]
        results = at.put(body, f"step_{step}", dict(zip(inputs, values, strict=True)))
        states = results[:kept]
        for row, value in zip(rows, results[kept:], strict=True):
            row.append(value)
    axes = given.get("scan_output_axes") or [0] * len(rows)
    backwards = given.get("scan_output_directions") or [0] * len(rows)
    joined = [
        _stack(written, row[::-1] if back else row, axis)
        for row, axis, back in zip(rows, axes, backwards, strict=True)
    ]
    for name, value in zip(node.output, [*states, *joined], strict=True):
        written.result(value, name)


def _cut(written: Written, source: str, axis: int, length: int, rank: int) -> list[str]:
    """The slices of a tensor along an axis, without that axis."""
    places = written.weight(np.array([axis % rank], np.int64))
    pieces = written.parts(source, [1] * length, axis)
    return [written.one("Squeeze", piece, places) for piece in pieces]


def _stack(written: Written, values: list[str], axis: int) -> str:
    places = written.weight(np.array([axis], np.int64))
    return written.joined([written.one("Unsqueeze", each, places) for each in values], axis)


def _loop(at: _Node) -> None:
    given, written, node = at.given, at.written, at.node
    body, (trips, condition, *states) = given["body"], node.input
    kept = len(states)
    known = at.constant(trips) if trips else None
    if known is None:
        raise refused(
            node,
            "the number of its steps is known only when it runs: expected a constant; export the "
            "model with the loop unrolled, or for one length",
        )
    steps = int(known.reshape(-1)[0])
    if steps > _MOST_STEPS:
        raise refused(node, f"it has {steps} steps: expected 0 to {_MOST_STEPS}")
    steps = max(steps, 0)
    begins = at.constant(condition) if condition else np.array(True)
    if begins is not None and not begins.any():
        steps = 0
    at.check_steps(body, steps)
    goes_on = _goes_on(body)
    rows: list[list[str]] = [[] for _ in body.output[1 + kept :]]
    if rows and (not goes_on or begins is None or not steps):
        raise refused(
            node, "it collects values, and may end earlier or has no step: expected a fixed length"
        )
    inputs = [each.name for each in body.input]
    # Whether the step is one that runs; None while that is certain.
    running = None if begins is not None else condition
    for step in range(steps):
        number = written.weight(np.array(step, np.int64))
        going = running or written.weight(np.array(True))
        values = dict(zip(inputs, [number, going, *states], strict=True))
        going, *results = at.put(body, f"step_{step}", values)
        new = results[:kept]
        if running is not None:
            new = [
                at.chosen(running, value, old, like)
                for value, old, like in zip(new, states, body.output[1:], strict=False)
            ]
            going = written.one("And", running, going)
        states = new
        running = None if goes_on and begins is not None else going
        for row, value in zip(rows, results[kept:], strict=True):
            row.append(value)
    joined = [_stack(written, row, 0) for row in rows]
    for name, value in zip(node.output, [*states, *joined], strict=True):
        written.result(value, name)


def _goes_on(body: Any) -> bool:
    """Whether a body's condition is its own before the step, or always true."""
    import onnx

    constants = {each.name: onnx.numpy_helper.to_array(each) for each in body.initializer}
    constants |= constants_of(body.node)
    name, begins = body.output[0].name, body.input[1].name
    handed = {n.output[0]: n.input[0] for n in body.node if n.op_type in ("Identity", "Cast")}
    while name in handed:
        name = handed[name]
    return name == begins or bool(name in constants and constants[name].all())


_WRITERS: Final = {"If": _if, "Loop": _loop, "Scan": _scan}
