"""Nodes of ``ai.onnx.ml``, as exports of scikit-learn have them, written out in ONNX's own.

Trees, linear models, scalers and the steps around them. The extents of a model are fixed, so a tree
of depth d is d steps down for all rows at once: every step reads the next node of each tree by
gathers, and a leaf is its own child. onnxruntime runs the nodes as they are in the file, and what
is written here is compared with that. Labels that are text become their places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from tapml.models.onnx_written import Array, Written
from tapml_targets.errors import UnsupportedOperatorError

DOMAIN: Final = "ai.onnx.ml"
# Operators take axes as inputs from here on.
_OLDEST_OPSET: Final = 13
# Of older ones: what means the same from there on, of two axes.
_UNCHANGED: Final = frozenset({
    "Add", "ArgMax", "Cast", "Concat", "Div", "Flatten", "Gather", "Identity", "MatMul", "Max",
    "Mul", "Reshape", "Sigmoid", "Softmax", "Sub",
})  # fmt: skip
_LINEAR: Final = frozenset({"LinearClassifier", "SVMClassifier"})
_LARGEST_TREE: Final = 1 << 22
_DEEPEST: Final = 256
_COMPARISONS: Final = {
    "BRANCH_LEQ": "LessOrEqual",
    "BRANCH_LT": "Less",
    "BRANCH_GTE": "GreaterOrEqual",
    "BRANCH_GT": "Greater",
    "BRANCH_EQ": "Equal",
}
_Attributes: TypeAlias = Mapping[str, Any]


def without_text(model: Any) -> None:
    """Cut maps from a model's ends and make labels that are text their places, in place.

    ``ZipMap`` makes a list of maps of a tensor: its input becomes the output.
    """
    import onnx

    graph = model.graph
    if not any(node.domain == DOMAIN for node in graph.node):
        return
    zipped = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "ZipMap"}
    kept = [node for node in graph.node if node.op_type != "ZipMap"]
    del graph.node[:]
    graph.node.extend(kept)
    texts = set()
    for node in graph.node:
        for each in list(node.attribute):
            if node.domain == DOMAIN and each.name == "classlabels_strings" and each.strings:
                places = list(range(len(each.strings)))
                node.attribute.remove(each)
                name = "classlabels_ints" if node.op_type in _LINEAR else "classlabels_int64s"
                node.attribute.append(onnx.helper.make_attribute(name, places))
                texts.add(node.output[0])
    for node in graph.node:
        if node.op_type in {"Identity", "Cast"} and node.input[0] in texts:
            # A cast of text to text.
            node.op_type = "Identity"
            del node.attribute[:]
            texts.add(node.output[0])
    types = onnx.TensorProto
    for at, each in enumerate(list(graph.output)):
        name = zipped.get(each.name, each.name)
        element = types.INT64 if name in texts else types.FLOAT if each.name in zipped else 0
        if element:
            made = onnx.helper.make_tensor_value_info(name, element, None)
            graph.output[at].CopyFrom(made)


def write_out_ml(model: Any) -> bool:
    """Replace the nodes of ``ai.onnx.ml`` of a model with fixed extents, in place; whether any was.

    Raises
    ------
    UnsupportedOperatorError
        If one cannot be written out; the message names the node and what it asks for.
    """
    import onnx

    if not any(node.domain == DOMAIN for node in model.graph.node):
        return False
    _raise_opset(model)
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    shapes = {
        each.name: [dim.dim_value for dim in each.type.tensor_type.shape.dim]
        for each in (*inferred.value_info, *inferred.input, *inferred.output)
    }
    nodes = []
    for node in model.graph.node:
        if node.domain != DOMAIN:
            nodes.append(node)
            continue
        writer = _WRITERS.get(node.op_type)
        if writer is None:
            raise _refused(node, f"it is none of {', '.join(sorted(_WRITERS))}")
        given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        written = Written(node.name or node.output[0])
        results = writer(node, given, written, shapes)
        for name, value in zip(node.output, results, strict=False):
            written.result(value, name)
        nodes += written.nodes
        model.graph.initializer.extend(written.weights)
        # What later nodes of the same domain read has the rows of the first input.
        first = shapes.get(node.input[0]) or [0]
        for name, width in zip(node.output, _widths(node, given, shapes), strict=False):
            shapes[name] = [first[0], width] if width else [first[0]]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return True


def _raise_opset(model: Any) -> None:
    """Let a model have the operators that are written."""
    import onnx

    others = {node.op_type for node in model.graph.node if node.domain != DOMAIN} - _UNCHANGED
    standard = [each for each in model.opset_import if each.domain in ("", "ai.onnx")]
    if not standard:
        model.opset_import.append(onnx.helper.make_opsetid("", _OLDEST_OPSET))
    for each in standard:
        if each.version < _OLDEST_OPSET and others:
            raise UnsupportedOperatorError(
                f"nodes of {DOMAIN} beside {', '.join(sorted(others))} of opset {each.version}: "
                f"expected {_OLDEST_OPSET} or later; export with target_opset={_OLDEST_OPSET}"
            )
        each.version = max(each.version, _OLDEST_OPSET)
    model.ir_version = max(model.ir_version, 7)


def _widths(node: Any, given: _Attributes, shapes: Mapping[str, list[int]]) -> list[int]:
    """Columns of a node's outputs; 0 for a label of each row."""
    if node.op_type.endswith("Classifier"):
        return [0, len(given.get("classlabels_int64s") or given.get("classlabels_ints") or ())]
    if node.op_type == "FeatureVectorizer":
        return [sum(given.get("inputdimensions") or ())]
    if node.op_type.endswith("Regressor"):
        return [int(given.get("n_targets") or given.get("targets") or 1)]
    return [(shapes.get(node.input[0]) or [0])[-1]]


def _refused(node: Any, reason: str) -> UnsupportedOperatorError:
    return UnsupportedOperatorError(
        f"{DOMAIN}.{node.op_type} in node {node.name or 'unnamed'!r} cannot be imported: {reason}"
    )


def _float(written: Written, source: str) -> str:
    return written.one("Cast", source, to=1)


def _scaler(node: Any, given: _Attributes, written: Written, _shapes: Any) -> list[str]:
    value = _float(written, node.input[0])
    if given.get("offset"):
        value = written.one("Sub", value, written.weight(np.array(given["offset"], np.float32)))
    if given.get("scale"):
        value = written.one("Mul", value, written.weight(np.array(given["scale"], np.float32)))
    return [value]


def _normalizer(node: Any, given: _Attributes, written: Written, _shapes: Any) -> list[str]:
    value, kind = _float(written, node.input[0]), given.get("norm", b"MAX").decode()
    axes = written.weight(np.array([-1], np.int64))
    if kind == "L2":
        squares = written.one("ReduceSum", written.one("Mul", value, value), axes)
        norm = written.one("Sqrt", squares)
    elif kind == "L1":
        norm = written.one("ReduceSum", written.one("Abs", value), axes)
    else:
        norm = written.one("ReduceMax", value, axes=[-1])
    one = written.weight(np.ones((), np.float32))
    zero = written.weight(np.zeros((), np.float32))
    # A row of zeros stays as it is.
    norm = written.one("Where", written.one("Equal", norm, zero), one, norm)
    return [written.one("Div", value, norm)]


def _binarizer(node: Any, given: _Attributes, written: Written, _shapes: Any) -> list[str]:
    bound = written.weight(np.array(given.get("threshold", 0.0), np.float32))
    return [_float(written, written.one("Greater", node.input[0], bound))]


def _imputer(node: Any, given: _Attributes, written: Written, _shapes: Any) -> list[str]:
    if not given.get("imputed_value_floats"):
        raise _refused(node, "it fills in whole numbers: expected floating-point ones")
    filled = written.weight(np.array(given["imputed_value_floats"], np.float32))
    absent = given.get("replaced_value_float", 0.0)
    value = node.input[0]
    if np.isnan(absent):
        found = written.one("IsNaN", value)
    else:
        found = written.one("Equal", value, written.weight(np.array(absent, np.float32)))
    return [written.one("Where", found, filled, value)]


def _vectorizer(node: Any, given: _Attributes, written: Written, _shapes: Any) -> list[str]:
    return [written.joined([_float(written, each) for each in node.input], 1)]


def _extractor(node: Any, _given: _Attributes, written: Written, _shapes: Any) -> list[str]:
    places = written.one("Reshape", node.input[1], written.weight(np.array([-1], np.int64)))
    return [written.one("Gather", node.input[0], places, axis=-1)]


def _linear(node: Any, given: _Attributes, written: Written, width: int) -> str:
    """Products with rows of coefficients, ``[batch, width]``."""
    matrix = np.array(given["coefficients"], np.float32).reshape(width, -1).T
    value = written.one("MatMul", _float(written, node.input[0]), written.weight(matrix))
    if given.get("intercepts"):
        value = written.one("Add", value, written.weight(np.array(given["intercepts"], np.float32)))
    return value


def _linear_regressor(node: Any, given: _Attributes, written: Written, _shapes: Any) -> list[str]:
    value = _linear(node, given, written, int(given.get("targets") or 1))
    return [_transformed(node, given, written, value)]


def _linear_classifier(node: Any, given: _Attributes, written: Written, _shapes: Any) -> list[str]:
    labels = _labels(node, given)
    rows = len(given.get("intercepts") or ()) or len(labels)
    value = _linear(node, given, written, rows)
    if rows == 1:
        raise _refused(node, "one row of coefficients for two classes: expected one for each")
    return [_best(written, value, labels), _transformed(node, given, written, value)]


def _labels(node: Any, given: _Attributes) -> Array:
    labels = given.get("classlabels_int64s") or given.get("classlabels_ints")
    if not labels:
        raise _refused(node, "it has no labels that are whole numbers")
    return np.array(labels, np.int64)


def _best(written: Written, scores: str, labels: Array) -> str:
    """The label of each row's largest score."""
    place = written.one("ArgMax", scores, axis=1, keepdims=0)
    return written.one("Gather", written.weight(labels), place, axis=0)


def _transformed(node: Any, given: _Attributes, written: Written, value: str) -> str:
    kind = given.get("post_transform", b"NONE").decode()
    if kind == "NONE":
        return value
    if kind == "LOGISTIC":
        return written.one("Sigmoid", value)
    if kind == "SOFTMAX":
        return written.one("Softmax", value, axis=1)
    raise _refused(node, f"post_transform {kind}: expected NONE, LOGISTIC or SOFTMAX")


class _Trees:
    """All trees of a node in one table: places of children are places of the table."""

    def __init__(self, node: Any, given: _Attributes, prefix: str) -> None:
        trees = np.array(given["nodes_treeids"], np.int64)
        numbers = np.array(given["nodes_nodeids"], np.int64)
        modes = [each.decode() for each in given["nodes_modes"]]
        kinds = {each for each in modes if each != "LEAF"} or {"BRANCH_LEQ"}
        if len(kinds) > 1 or not kinds <= set(_COMPARISONS):
            raise _refused(node, f"branches of the kinds {', '.join(sorted(kinds))}")
        if any(given.get("nodes_missing_value_tracks_true") or ()):
            raise _refused(node, "branches that take what is not a number")
        if len(modes) > _LARGEST_TREE:
            raise _refused(node, f"{len(modes)} nodes: expected at most {_LARGEST_TREE}")
        self.comparison = _COMPARISONS[kinds.pop()]
        at = {key: place for place, key in enumerate(zip(trees, numbers, strict=True))}
        leaf = np.array([mode == "LEAF" for mode in modes])
        own = np.arange(len(modes))

        def children(name: str) -> Array:
            found = [
                place if leaf[place] else at[trees[place], child]
                for place, child in enumerate(given[name])
            ]
            return np.array(found, np.int64)

        self.yes = children("nodes_truenodeids")
        self.no = children("nodes_falsenodeids")
        self.feature = np.where(leaf, 0, np.array(given["nodes_featureids"], np.int64))
        self.bound = np.array(given["nodes_values"], np.float32)
        _, firsts = np.unique(trees, return_index=True)
        inner = np.concatenate([self.yes[~leaf], self.no[~leaf]])
        self.roots = np.setdiff1d(own, inner)
        if len(self.roots) != len(firsts):
            raise _refused(node, "its nodes are no trees")
        self.depth, level = 0, self.roots[~leaf[self.roots]]
        while len(level):
            below = np.concatenate([self.yes[level], self.no[level]])
            level = below[~leaf[below]]
            self.depth += 1
            if self.depth > _DEEPEST:
                raise _refused(node, f"a tree deeper than {_DEEPEST}")
        ids = np.array(given[f"{prefix}_ids"], np.int64)
        width = int(given.get("n_targets") or ids.max(initial=0) + 1)
        if prefix == "class":
            width = len(_labels(node, given))
        self.only = int(ids[0]) if len(set(ids.tolist())) == 1 else None
        self.values = np.zeros((len(modes), width), np.float32)
        held = zip(
            given[f"{prefix}_treeids"], given[f"{prefix}_nodeids"], ids,
            given[f"{prefix}_weights"], strict=True,
        )  # fmt: skip
        for tree, number, column, weight in held:
            self.values[at[tree, number], column] += weight

    def total(self, node: Any, written: Written, rows: int, columns: int) -> str:
        """The sum of all trees' leaves, ``[rows, width]``."""
        flat = written.one(
            "Reshape", _float(written, node.input[0]), written.weight(np.array([-1], np.int64))
        )
        offsets = written.weight((np.arange(rows, dtype=np.int64) * columns)[:, None])
        yes, no, feature, bound = (
            written.weight(each) for each in (self.yes, self.no, self.feature, self.bound)
        )
        place = written.weight(np.tile(self.roots.astype(np.int64), (rows, 1)))
        for _ in range(self.depth):
            read = written.one("Add", written.one("Gather", feature, place), offsets)
            value = written.one("Gather", flat, read)
            goes = written.one(self.comparison, value, written.one("Gather", bound, place))
            place = written.one(
                "Where", goes, written.one("Gather", yes, place), written.one("Gather", no, place)
            )
        leaves = written.one("Gather", written.weight(self.values), place, axis=0)
        return written.one("ReduceSum", leaves, written.weight(np.array([1], np.int64)), keepdims=0)


def _sum_of_trees(
    node: Any, given: _Attributes, written: Written, shapes: Any, prefix: str
) -> tuple[_Trees, str]:
    rows, *columns = shapes.get(node.input[0]) or (0,)
    if not rows or len(columns) != 1 or not columns[0]:
        raise _refused(node, "the rows and columns of its input are not known")
    trees = _Trees(node, given, prefix)
    value = trees.total(node, written, rows, columns[0])
    if given.get("aggregate_function", b"SUM") == b"AVERAGE":
        value = written.one("Div", value, written.weight(np.array(len(trees.roots), np.float32)))
    elif given.get("aggregate_function", b"SUM") != b"SUM":
        raise _refused(node, f"aggregate_function {given['aggregate_function'].decode()}")
    if given.get("base_values"):
        base = np.array(given["base_values"], np.float32)
        value = written.one("Add", value, written.weight(base))
    return trees, value


def _tree_regressor(node: Any, given: _Attributes, written: Written, shapes: Any) -> list[str]:
    _, value = _sum_of_trees(node, given, written, shapes, "target")
    return [_transformed(node, given, written, value)]


def _tree_classifier(node: Any, given: _Attributes, written: Written, shapes: Any) -> list[str]:
    labels = _labels(node, given)
    trees, value = _sum_of_trees(node, given, written, shapes, "class")
    kind = given.get("post_transform", b"NONE").decode()
    if len(labels) == 2 and trees.only is not None:
        # One score for two classes, as onnxruntime reads it: under the first one's number it is
        # the second one's, and what is left is the first one's.
        if given.get("base_values") and len(given["base_values"]) > 1:
            raise _refused(node, "one score for two classes, and two base values")
        positive = min(given["class_weights"]) >= 0
        column = written.weight(np.array([trees.only], np.int64))
        score = written.one("Gather", value, column, axis=1)
        bound = written.weight(np.array(0.5 if positive else 0.0, np.float32))
        names = (written.weight(labels[at : at + 1]) for at in (1, 0))
        label = written.one("Where", written.one("Greater", score, bound), *names)
        label = written.one("Reshape", label, written.weight(np.array([-1], np.int64)))
        if trees.only == 0:
            start = 1.0 if positive and kind == "NONE" else 0.0
            other = written.one("Sub", written.weight(np.array(start, np.float32)), score)
            value = written.one("Concat", other, score, axis=1)
        return [label, _transformed(node, given, written, value)]
    return [_best(written, value, labels), _transformed(node, given, written, value)]


_WRITERS: Final[dict[str, Callable[[Any, _Attributes, Written, Any], list[str]]]] = {
    "ArrayFeatureExtractor": _extractor,
    "Binarizer": _binarizer,
    "FeatureVectorizer": _vectorizer,
    "Imputer": _imputer,
    "LinearClassifier": _linear_classifier,
    "LinearRegressor": _linear_regressor,
    "Normalizer": _normalizer,
    "Scaler": _scaler,
    "TreeEnsembleClassifier": _tree_classifier,
    "TreeEnsembleRegressor": _tree_regressor,
}
