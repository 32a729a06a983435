"""Nodes of ``ai.onnx.ml``, as exports of scikit-learn have them, written out in ONNX's own.

Trees, linear models, scalers and the steps around them. The extents of a model are fixed, so a tree
of depth d is d steps down for all rows at once: every step reads the next node of each tree by
gathers, and a leaf is its own child. onnxruntime runs the nodes as they are in the file, and what
is written here is compared with that. Labels that are text become their places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from tapml.models.onnx_svm import write_svm_classifier, write_svm_regressor
from tapml.models.onnx_written import Array, Written, refused
from tapml_targets.errors import UnsupportedOperatorError

DOMAIN: Final = "ai.onnx.ml"
# Operators take axes as inputs from here on.
_OLDEST_OPSET: Final = 13
# ReduceMax from here on.
_AXES_OF_LARGEST: Final = 18
# Of older ones: what means the same from there on, of two axes.
_UNCHANGED: Final = frozenset({
    "Abs", "Add", "And", "ArgMax", "Cast", "Concat", "Div", "Equal", "Exp", "Flatten", "Gather",
    "Greater", "Identity", "Less", "Log", "MatMul", "Max", "Mul", "Neg", "Not", "Or", "Pow", "Relu",
    "Reshape", "Sigmoid", "Sign", "Softmax", "Sqrt", "Sub", "Tanh", "Transpose", "Where",
})  # fmt: skip
_LINEAR: Final = frozenset({"LinearClassifier", "SVMClassifier"})
# What is written for them rests on the extents of what they read.
_OF_EXTENTS: Final = frozenset({
    "FeatureVectorizer", "TreeEnsembleClassifier", "TreeEnsembleRegressor",
})  # fmt: skip
_LARGEST_TREE: Final = 1 << 22
# Numbers in the leaves of all trees of a node.
_MOST_IN_LEAVES: Final = 1 << 28
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

    Raises
    ------
    UnsupportedOperatorError
        If a node reads labels that are text, but to hand them on; the message names it.
    """
    import onnx

    graph = model.graph
    if not any(node.domain == DOMAIN for node in graph.node):
        return
    zipped = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "ZipMap"}
    kept = [node for node in graph.node if node.op_type != "ZipMap"]
    del graph.node[:]
    graph.node.extend(kept)
    types, texts = onnx.TensorProto, set()
    for node in graph.node:
        for each in list(node.attribute):
            if node.domain == DOMAIN and each.name == "classlabels_strings" and each.strings:
                places = list(range(len(each.strings)))
                node.attribute.remove(each)
                name = "classlabels_ints" if node.op_type in _LINEAR else "classlabels_int64s"
                node.attribute.append(onnx.helper.make_attribute(name, places))
                texts.add(node.output[0])
    for node in graph.node:
        if texts.isdisjoint(node.input):
            continue
        to = [each.i for each in node.attribute if node.op_type == "Cast" and each.name == "to"]
        if node.op_type != "Identity" and to != [types.STRING]:
            raise refused(node, "it reads labels that are text, whose places are imported")
        # A cast of text to text.
        node.op_type = "Identity"
        del node.attribute[:]
        texts.add(node.output[0])
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
    opset = _raise_opset(model)
    every = list(model.graph.node)
    shapes: dict[str, list[int]] = {}
    nodes: list[Any] = []
    for node in every:
        if node.domain != DOMAIN:
            nodes.append(node)
            continue
        writer = _WRITERS.get(node.op_type)
        if writer is None:
            raise refused(node, f"expected one of {', '.join(sorted(_WRITERS))}")
        given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        written = Written(node.name or node.output[0], opset)
        if node.op_type in _OF_EXTENTS and not shapes.keys() >= set(node.input):
            shapes = _shapes_behind(model, nodes)
        results = writer(node, given, written, shapes)
        for name, value in zip(node.output, results, strict=False):
            written.result(value, name)
        nodes += written.nodes
        model.graph.initializer.extend(written.weights)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return True


def _raise_opset(model: Any) -> int:
    """The opset of a model, raised to the operators that are written."""
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
    return max((each.version for each in standard), default=_OLDEST_OPSET)


def _shapes_behind(model: Any, nodes: Sequence[Any]) -> dict[str, list[int]]:
    """Shapes of a model's inputs and of what `nodes`, all of ONNX's own, give.

    The model has `nodes` alone afterwards.
    """
    import onnx

    del model.graph.node[:]
    model.graph.node.extend(nodes)
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    return {
        each.name: [dim.dim_value for dim in each.type.tensor_type.shape.dim]
        for each in (*inferred.value_info, *inferred.input)
    }


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
    elif written.opset < _AXES_OF_LARGEST:
        norm = written.one("ReduceMax", value, axes=[-1])
    else:
        norm = written.one("ReduceMax", value, axes)
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
        raise refused(node, "it fills in whole numbers: expected floating-point ones")
    filled = written.weight(np.array(given["imputed_value_floats"], np.float32))
    absent = given.get("replaced_value_float", 0.0)
    value = node.input[0]
    if np.isnan(absent):
        found = written.one("IsNaN", value)
    else:
        found = written.one("Equal", value, written.weight(np.array(absent, np.float32)))
    return [written.one("Where", found, filled, value)]


def _vectorizer(node: Any, given: _Attributes, written: Written, shapes: Any) -> list[str]:
    found = [(shapes.get(each) or [0])[1:] for each in node.input]
    if found != [[each] for each in given.get("inputdimensions") or ()]:
        # onnxruntime cuts columns and fills them up.
        raise refused(node, "its inputdimensions are not the columns of its inputs")
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
    targets = int(given.get("targets") or 1)
    value = _linear(node, given, written, targets)
    return [_regressed(node, given, written, value, targets)]


def _linear_classifier(node: Any, given: _Attributes, written: Written, _shapes: Any) -> list[str]:
    labels = _labels(node, given)
    rows = len(given.get("intercepts") or ()) or len(labels)
    value = _linear(node, given, written, rows)
    if rows == 1:
        raise refused(node, "one row of coefficients for two classes: expected one for each")
    return [_best(written, value, labels), _transformed(node, given, written, value)]


def _labels(node: Any, given: _Attributes) -> Array:
    labels = given.get("classlabels_int64s") or given.get("classlabels_ints")
    if not labels:
        raise refused(node, "it has no labels that are whole numbers")
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
    raise refused(node, f"post_transform {kind}: expected NONE, LOGISTIC or SOFTMAX")


def _regressed(node: Any, given: _Attributes, written: Written, value: str, targets: int) -> str:
    """Values of targets; onnxruntime leaves one alone as it is, whatever is asked for."""
    kind = given.get("post_transform", b"NONE").decode()
    if targets == 1 and kind != "NONE":
        raise refused(node, f"post_transform {kind} of one target: expected NONE")
    return _transformed(node, given, written, value)


class _Trees:
    """All trees of a node in one table: places of children are places of the table."""

    def __init__(self, node: Any, given: _Attributes, prefix: str) -> None:
        doubles = sorted(name for name in given if name.endswith("_as_tensor"))
        if doubles:
            raise refused(node, f"{', '.join(doubles)}: expected attributes of float32")
        trees = np.array(given["nodes_treeids"], np.int64)
        numbers = np.array(given["nodes_nodeids"], np.int64)
        modes = [each.decode() for each in given["nodes_modes"]]
        kinds = {each for each in modes if each != "LEAF"} or {"BRANCH_LEQ"}
        if len(kinds) > 1 or not kinds <= set(_COMPARISONS):
            raise refused(node, f"branches of the kinds {', '.join(sorted(kinds))}")
        if any(given.get("nodes_missing_value_tracks_true") or ()):
            raise refused(node, "branches that take what is not a number")
        if len(modes) > _LARGEST_TREE:
            raise refused(node, f"{len(modes)} nodes: expected at most {_LARGEST_TREE}")
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
            raise refused(node, "its nodes are no trees")
        self.depth, level = 0, self.roots[~leaf[self.roots]]
        while len(level):
            # Two branches may have one child.
            below = np.unique(np.concatenate([self.yes[level], self.no[level]]))
            level = below[~leaf[below]]
            self.depth += 1
            if self.depth > _DEEPEST:
                raise refused(node, f"a tree deeper than {_DEEPEST}")
        self._fill_leaves(node, given, prefix, at, leaf)

    def _fill_leaves(
        self,
        node: Any,
        given: _Attributes,
        prefix: str,
        at: Mapping[tuple[Any, Any], int],
        leaf: Array,
    ) -> None:
        ids = np.array(given[f"{prefix}_ids"], np.int64)
        width = int(given.get("n_targets") or ids.max(initial=0) + 1)
        if prefix == "class":
            width = len(_labels(node, given))
        if not 0 < width * len(leaf) <= _MOST_IN_LEAVES:
            raise refused(
                node, f"{len(leaf)} nodes of {width} numbers: expected {_MOST_IN_LEAVES} at most"
            )
        if ids.min(initial=0) < 0 or ids.max(initial=0) >= width:
            raise refused(node, f"{prefix}_ids outside of 0 to {width - 1}")
        self.only = int(ids[0]) if len(set(ids.tolist())) == 1 else None
        self.values = np.zeros((len(leaf), width), np.float32)
        held = np.zeros((len(leaf), width), np.bool_)
        leaves = zip(
            given[f"{prefix}_treeids"], given[f"{prefix}_nodeids"], ids,
            given[f"{prefix}_weights"], strict=True,
        )  # fmt: skip
        for tree, number, column, weight in leaves:
            self.values[at[tree, number], column] += weight
            held[at[tree, number], column] = True
        _, tree_of = np.unique(given["nodes_treeids"], return_inverse=True)
        whole = np.ones((len(self.roots), width), np.bool_)
        np.logical_and.at(whole, tree_of[leaf], held[leaf])
        # Columns of which each row has a leaf: onnxruntime tells nothing from 0.
        self.held: Array = np.asarray(whole.any(axis=0))

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
        raise refused(node, "the rows and columns of its input are not known")
    trees = _Trees(node, given, prefix)
    if trees.feature.min() < 0 or trees.feature.max() >= columns[0]:
        raise refused(node, f"nodes_featureids outside of the {columns[0]} columns of its input")
    value = trees.total(node, written, rows, columns[0])
    if given.get("aggregate_function", b"SUM") == b"AVERAGE":
        value = written.one("Div", value, written.weight(np.array(len(trees.roots), np.float32)))
    elif given.get("aggregate_function", b"SUM") != b"SUM":
        raise refused(node, f"aggregate_function {given['aggregate_function'].decode()}")
    if given.get("base_values"):
        base = np.array(given["base_values"], np.float32)
        value = written.one("Add", value, written.weight(base))
    return trees, value


def _tree_regressor(node: Any, given: _Attributes, written: Written, shapes: Any) -> list[str]:
    trees, value = _sum_of_trees(node, given, written, shapes, "target")
    targets = trees.values.shape[1]
    if targets > 1 and given.get("base_values") and not trees.held.all():
        # onnxruntime leaves its base value out of such a target.
        raise refused(node, "base values, and rows without a leaf of a target")
    return [_regressed(node, given, written, value, targets)]


def _tree_classifier(node: Any, given: _Attributes, written: Written, shapes: Any) -> list[str]:
    labels = _labels(node, given)
    trees, value = _sum_of_trees(node, given, written, shapes, "class")
    kind = given.get("post_transform", b"NONE").decode()
    base, lowest = given.get("base_values"), min(given["class_weights"], default=0.0)
    if len(labels) == 1:
        raise refused(node, "one class: expected two or more")
    if len(labels) == 2 and trees.only is None:
        # onnxruntime gives 1 or 0 as their label, whatever the labels are.
        raise refused(node, "leaves of both of two classes: expected those of one")
    if len(labels) == 2 and trees.only == 1 and (base or not trees.held[1]):
        reason = "base values" if base else "rows without a leaf"
        raise refused(node, f"{reason}, and leaves of the second of two classes alone")
    if len(labels) == 2 and trees.only == 0 and kind == "SOFTMAX":
        raise refused(node, "post_transform SOFTMAX, and leaves of the first of two classes alone")
    if len(labels) > 2 and not trees.held.all() and not base and lowest <= 0:
        # For onnxruntime such a class is less than one below 0.
        raise refused(node, "weights of 0 or less, and rows without a leaf of a class")
    if len(labels) == 2:
        # One score for two classes, as onnxruntime reads it: under the first one's number it is
        # the second one's, and what is left is the first one's.
        if base and len(base) > 1:
            raise refused(node, "one score for two classes, and two base values")
        positive = lowest >= 0
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


def _one_hot_encoder(node: Any, given: _Attributes, written: Written, _shapes: Any) -> list[str]:
    """1 for the category of each value, in a new last axis; zeros for a value of none.

    onnxruntime raises for such a value where the attribute ``zeros`` is 0.
    """
    categories = given.get("cats_int64s")
    if not categories:
        raise refused(node, "its categories are texts: encode them before the model")
    value = written.one("Cast", node.input[0], to=_INT64)
    wide = written.one("Unsqueeze", value, written.weight(np.array([-1], np.int64)))
    found = written.one("Equal", wide, written.weight(np.array(categories, np.int64)))
    return [_float(written, found)]


_INT64: Final = 7


def _label_encoder(node: Any, given: _Attributes, written: Written, _shapes: Any) -> list[str]:
    """The value of each key; a default where there is none."""
    import onnx

    tables = {
        name: onnx.numpy_helper.to_array(each)
        for name, each in given.items()
        if name.endswith("_tensor")
    }
    for kind, dtype in (("int64s", np.int64), ("floats", np.float32)):
        for side in ("keys", "values"):
            if given.get(f"{side}_{kind}"):
                tables[f"{side}_tensor"] = np.array(given[f"{side}_{kind}"], dtype)
    keys, values = tables.get("keys_tensor"), tables.get("values_tensor")
    if keys is None or values is None or "O" in (keys.dtype.kind, values.dtype.kind):
        raise refused(node, "keys or values that are texts: encode them before the model")
    if len(np.unique(keys)) != len(keys):
        raise refused(node, "a key that is there twice")
    plain: Any = np.array(-1 if values.dtype.kind == "i" else -0.0, values.dtype)
    name = "default_int64" if values.dtype.kind == "i" else "default_float"
    default = tables.get("default_tensor", np.array(given.get(name, plain))).reshape(())
    one = written.one
    wide = one("Unsqueeze", node.input[0], written.weight(np.array([-1], np.int64)))
    found = one("Equal", wide, written.weight(keys))
    places = one("ArgMax", one("Cast", found, to=1), axis=-1, keepdims=0)
    last = written.weight(np.array([-1], np.int64))
    any_found = one("ReduceSum", one("Cast", found, to=_INT64), last, keepdims=0)
    missing = one("Equal", any_found, written.weight(np.array(0, np.int64)))
    value = one("Gather", written.weight(values), places, axis=0)
    return [one("Where", missing, written.weight(default.astype(values.dtype)), value)]


_WRITERS: Final[dict[str, Callable[[Any, _Attributes, Written, Any], list[str]]]] = {
    "ArrayFeatureExtractor": _extractor,
    "Binarizer": _binarizer,
    "FeatureVectorizer": _vectorizer,
    "Imputer": _imputer,
    "LinearClassifier": _linear_classifier,
    "LinearRegressor": _linear_regressor,
    "LabelEncoder": _label_encoder,
    "Normalizer": _normalizer,
    "OneHotEncoder": _one_hot_encoder,
    "SVMClassifier": write_svm_classifier,
    "SVMRegressor": write_svm_regressor,
    "Scaler": _scaler,
    "TreeEnsembleClassifier": _tree_classifier,
    "TreeEnsembleRegressor": _tree_regressor,
}
