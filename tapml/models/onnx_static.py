"""What an ONNX model computes from extents alone becomes a constant.

The extents of a model are fixed. onnxruntime folds what it can infer them of; here they are those
of a run, wherever no value of an input can change them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from tapml.models.onnx_control_flow import CONTROL_FLOW
from tapml.models.onnx_written import Array

SIZED_BY: Final[Mapping[str, tuple[int, ...] | None]] = {
    "AffineGrid": (1,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "Compress": None,
    "ConstantOfShape": (0,),
    "DFT": (1, 2),
    "Expand": (1,),
    "MaxUnpool": (2,),
    "NonMaxSuppression": None,
    "NonZero": None,
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unique": None,
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
"""Inputs whose values decide the extents of the results, by operator; None stands for every one."""
_OF_EXTENTS: Final = frozenset({"Shape", "Size"})
# Their results are no constants, though their inputs may be.
_NEVER: Final = frozenset({
    "Bernoulli", "Constant", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike", "SequenceMap",
})  # fmt: skip
_LARGEST: Final = 1 << 16
"""Numbers of a constant that is put in."""


def fold_extents(model: Any, run: Callable[[], Mapping[str, Array]]) -> bool:
    """Replace nodes whose results depend on extents alone, in place; whether there were any.

    `run` gives every value of a run by name; it is called where there is something to replace.
    """
    found = _of_extents(model.graph)
    if not found:
        return False
    values = run()
    import onnx

    nodes = []
    for node in model.graph.node:
        results = [each for each in node.output if each]
        arrays = [values.get(each) for each in results]
        whole = all(isinstance(each, np.ndarray) and each.size <= _LARGEST for each in arrays)
        if not found.issuperset(results) or not whole:
            nodes.append(node)
            continue
        tensors = (
            onnx.numpy_helper.from_array(np.asarray(array, order="C"), name)
            for name, array in zip(results, arrays, strict=True)
        )
        model.graph.initializer.extend(tensors)
    changed = len(nodes) < len(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return changed


def _of_extents(graph: Any) -> set[str]:
    """Names of values that depend on extents alone; outputs of the graph are left out."""
    known = {each.name for each in graph.initializer}
    sized = known | {each.name for each in graph.input}
    found: set[str] = set()
    for node in graph.node:
        inputs = [each for each in node.input if each]
        if node.op_type in CONTROL_FLOW:
            continue  # Graphs inside may read what is no input of the node.
        if node.op_type == "Constant":
            known.update(node.output)
        by = SIZED_BY.get(node.op_type, ())
        deciding = inputs if by is None else [node.input[at] for at in by if at < len(node.input)]
        if sized.issuperset(inputs) and known.issuperset(filter(None, deciding)):
            sized.update(node.output)
        of_extents = node.op_type in _OF_EXTENTS and sized.issuperset(inputs)
        if of_extents or (node.op_type not in _NEVER and inputs and known.issuperset(inputs)):
            known.update(node.output)
            found.update(node.output)
    return found - {each.name for each in graph.output}
