"""Inputs of an ONNX model that decide extents, axes or branches, and no number of a result.

Extents are fixed when a model is moved, and so are these: they become constants, of the values that
the first input gives. A branch is taken alone where the other one does not take the inputs' sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from tapml.models.onnx_control_flow import CONTROL_FLOW, put_branch
from tapml.models.onnx_static import SIZED_BY
from tapml.models.onnx_written import Array
from tapml_targets.errors import InputError

_AXES: Final = (
    "CumSum", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "ReverseSequence",
)  # fmt: skip
_SIZES: Final = ("BlackmanWindow", "HammingWindow", "HannWindow", "Loop")
_DECIDING: Final[dict[str, tuple[int, ...]]] = {
    **{operator: places or () for operator, places in SIZED_BY.items()},
    **dict.fromkeys(_AXES, (1,)),
    **dict.fromkeys(_SIZES, (0,)),
}
_SHAPE: Final = ("Shape", "Size")
_MOST: Final = 64


def fix_inputs(
    model: Any, given: Mapping[str, Array], name: str, *, branches: bool
) -> dict[str, Array]:
    """Make such inputs constants, in place; their values.

    Parameters
    ----------
    model
        With its stored tensors as constants.
    given
        Values by name.
    name
        Of the model, for people.
    branches
        Whether inputs that decide a branch are among them; those branches are taken.

    Raises
    ------
    InputError
        If one has no value, or one of another shape or with numbers that its dtype cannot hold.
    """
    import onnx

    fixed: dict[str, Array] = {}
    for value in list(model.graph.input):
        by = set(_decided(model.graph, value.name))
        if not by or not (branches or by - {"If"}):
            continue
        if value.name not in given:
            raise InputError(
                f"input {value.name} of {name} decides extents or axes ({', '.join(sorted(by))}), "
                "which are fixed here: give its value (--input inputs.npz)"
            )
        array = np.asarray(given[value.name])
        if array.size > _MOST or array.dtype.kind not in "iub":
            continue
        fixed[value.name] = _fitted(value, array, name)
        model.graph.input.remove(value)
        tensor = onnx.numpy_helper.from_array(fixed[value.name], value.name)
        model.graph.initializer.append(tensor)
    while branches and _take_branches(model):
        pass
    return fixed


def _fitted(value: Any, array: Array, name: str) -> Array:
    """An array in the dtype of an input."""
    import onnx

    wanted = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    fitted = array.astype(wanted)
    if not np.array_equal(fitted, array):
        raise InputError(f"input {value.name} of {name} has numbers that no {wanted} holds")
    extents = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    known = value.type.tensor_type.HasField("shape")
    if known and (
        len(extents) != array.ndim
        or any(own not in (0, got) for own, got in zip(extents, array.shape, strict=True))
    ):
        shown = [each or "any" for each in extents]
        raise InputError(
            f"input {value.name} of {name} has the shape {list(array.shape)}: expected {shown}"
        )
    return fitted


def _decided(graph: Any, source: str) -> Iterator[str]:
    """Operators whose extents, axes or branch an input decides; none if it is in a result."""
    reached, found = {source}, []
    for node in graph.node:
        places = (0,) if node.op_type == "If" else _DECIDING.get(node.op_type, ())
        decides = [at for at, each in enumerate(node.input) if each in reached]
        if node.op_type in _SHAPE or not (decides or _reads(node, reached)):
            continue
        if set(decides) <= set(places) and not _reads(node, reached):
            found.append(str(node.op_type))
        else:
            reached.update(node.output)
    if reached.isdisjoint(each.name for each in graph.output):
        yield from found


def _reads(node: Any, names: set[str]) -> bool:
    """Whether a graph inside of a node reads a value from outside."""
    pending = [graph for each in node.attribute for graph in (each.g, *each.graphs)]
    while pending:
        graph = pending.pop()
        for inner in graph.node:
            if not names.isdisjoint(inner.input):
                return True
            pending += [g for each in inner.attribute for g in (each.g, *each.graphs)]
        if not names.isdisjoint(each.name for each in graph.output):
            return True
    return False


def _take_branches(model: Any) -> bool:
    """Write the branch of each ``If`` whose condition constants give, in place; whether any was."""
    known = _computed(model)
    nodes: list[Any] = []
    changed = False
    for node in model.graph.node:
        if node.op_type != "If" or node.input[0] not in known:
            nodes.append(node)
            continue
        written = put_branch(node, bool(known[node.input[0]].all()))
        nodes += written.nodes
        model.graph.initializer.extend(written.weights)
        changed = True
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return changed


def _computed(model: Any) -> dict[str, Array]:
    """Conditions of ``If`` nodes that constants alone give."""
    import onnx
    import onnxruntime

    conditions = {node.input[0] for node in model.graph.node if node.op_type == "If"}
    stored = {each.name: each for each in model.graph.initializer}
    found = {
        name: onnx.numpy_helper.to_array(stored[name]) for name in conditions if name in stored
    }
    known, nodes = set(stored), []
    for node in model.graph.node:
        if node.op_type not in CONTROL_FLOW and known.issuperset(filter(None, node.input)):
            known.update(node.output)
            nodes.append(node)
    wanted = [name for name in conditions if name in known and name not in stored]
    if not wanted:
        return found
    read = set(wanted)
    needed: list[Any] = []
    for node in reversed(nodes):
        if not read.isdisjoint(node.output):
            needed.append(node)
            read.update(node.input)
    graph = onnx.helper.make_graph(
        needed[::-1],
        "conditions",
        [],
        [onnx.helper.make_tensor_value_info(e, onnx.TensorProto.BOOL, None) for e in wanted],
        [stored[name] for name in stored if name in read],
    )
    small = onnx.helper.make_model(
        graph, opset_imports=model.opset_import, ir_version=model.ir_version
    )
    session = onnxruntime.InferenceSession(
        small.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return found | dict(zip(wanted, session.run(wanted, {}), strict=True))
