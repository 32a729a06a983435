"""Nodes of an ONNX model that TVM's importer has no converter for, in a form that it has one for.

First what ONNX itself defines by other operators, then nodes of quantized models
(:mod:`tapml.models.onnx_quantized`), those that onnxruntime's own optimizer leaves in a file
(:mod:`tapml.models.onnx_microsoft`), and a few others here. onnxruntime runs the nodes as they are
in the file, and what is written here is compared with that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from tapml.models.onnx_control_flow import constants_of
from tapml.models.onnx_microsoft import MICROSOFT
from tapml.models.onnx_quantized import QUANTIZED
from tapml.models.onnx_written import Array, At, Written, refused

# Operators that ONNX defines by others, and that no converter has, or one that means another.
_DEFINED: Final = frozenset({
    "Attention", "CausalConvWithState", "Celu", "CenterCropPad", "LinearAttention",
    "NegativeLogLikelihoodLoss", "RotaryEmbedding", "SoftmaxCrossEntropyLoss",
})  # fmt: skip
_RANDOM: Final = frozenset({
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
})  # fmt: skip
# As many results as values of an input say.
_OF_VALUES: Final = frozenset({"Compress", "NonMaxSuppression", "NonZero", "Unique"})
# Operators take axes and sizes as inputs from here on.
OLDEST_OPSET: Final = 13
MICROSOFT_DOMAIN: Final = "com.microsoft"
_Writer: TypeAlias = Callable[[At], list[str]]


def with_defined(model: Any) -> Any:
    """A model with the operators that ONNX defines by others written as those."""
    import onnx.inliner

    found = {n.op_type for n in model.graph.node if n.domain in ("", "ai.onnx")} & _DEFINED
    if not found:
        return model
    for node in model.graph.node:
        if node.op_type not in found or node.domain not in ("", "ai.onnx"):
            continue
        while node.input and not node.input[-1]:
            node.input.pop()
        if "" in node.input:
            # The inliner asks for the types of all that are there.
            place = list(node.input).index("")
            raise refused(node, f"its input {place} is left out, and later ones are there")
    names = [("", each) for each in sorted(found)]
    # The inliner asks for the types of stored tensors, too.
    described = {each.name for each in (*model.graph.input, *model.graph.value_info)}
    model.graph.value_info.extend(
        onnx.helper.make_tensor_value_info(each.name, each.data_type, each.dims)
        for each in model.graph.initializer
        if each.name not in described
    )
    return onnx.inliner.inline_selected_functions(model, names, inline_schema_functions=True)


def is_known(node: Any) -> bool:
    """Whether a node of another domain than ONNX's is written out."""
    return node.domain == MICROSOFT_DOMAIN and node.op_type in {*MICROSOFT, *QUANTIZED}


def _writer(node: Any) -> _Writer | None:
    if node.domain == MICROSOFT_DOMAIN:
        return MICROSOFT.get(node.op_type) or QUANTIZED.get(node.op_type)
    if node.op_type == "SimplifiedLayerNormalization":
        # onnxruntime writes it into ONNX's own domain.
        return MICROSOFT[node.op_type]
    return QUANTIZED.get(node.op_type) or _WRITERS.get(node.op_type)


def has_others(model: Any) -> bool:
    """Whether a node of a model is to be written out, or refused, by :func:`write_out_others`."""
    never = _RANDOM | _OF_VALUES
    return any(_writer(node) or node.op_type in never for node in model.graph.node)


def write_out_others(model: Any, values: Mapping[str, Array]) -> None:
    """Replace such nodes of a model, in place.

    Parameters
    ----------
    model
        With fixed extents, of opset 13 or later.
    values
        Every value of a run of it by name, for their shapes and dtypes.

    Raises
    ------
    UnsupportedOperatorError
        If one cannot be written out; the message names the node.
    """
    import onnx

    constants = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    constants |= constants_of(model.graph.node)
    opset = next(e.version for e in model.opset_import if e.domain in ("", "ai.onnx"))
    nodes: list[Any] = []
    for node in model.graph.node:
        if node.op_type in _RANDOM:
            raise refused(
                node, "it draws random numbers: give them to the model as an input, and export it"
            )
        if node.op_type in _OF_VALUES:
            raise refused(
                node,
                "how many results there are is known only when it runs: export what is before it",
            )
        writer = _writer(node)
        if writer is None:
            nodes.append(node)
            continue
        written = Written(node.name or node.output[0], opset)
        given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        results = writer(At(node, given, written, constants, values))
        for name, value in zip(node.output, results, strict=False):
            if name and not value:
                raise refused(node, f"its output {name!r}: expected the first alone")
            written.result(value, name)
        nodes += written.nodes
        model.graph.initializer.extend(written.weights)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _lp_normalization(at: At) -> list[str]:
    one, axis = at.written.one, int(at.given.get("axis", -1))
    operator = "ReduceL1" if at.given.get("p", 2) == 1 else "ReduceL2"
    if at.written.opset < _AXES_OF_NORMS:
        norm = one(operator, at.node.input[0], axes=[axis], keepdims=1)
    else:
        norm = one(operator, at.node.input[0], at.whole(axis), keepdims=1)
    zero = one("Equal", norm, at.number(0.0))
    # A row of zeros stays one.
    return [one("Div", at.node.input[0], one("Where", zero, at.number(1.0), norm))]


# ReduceL1 and ReduceL2 take axes as an input from here on.
_AXES_OF_NORMS: Final = 18


def _is_inf(at: At) -> list[str]:
    one, value = at.written.one, at.node.input[0]
    above, below = (bool(at.given.get(f"detect_{e}", 1)) for e in ("positive", "negative"))
    if above == below:
        # No magnitude is minus infinity.
        magnitude = one("Abs", value)
        return [one("Equal", magnitude, at.number(math.inf if above else -math.inf))]
    return [one("Equal", value, at.number(math.inf if above else -math.inf))]


def _swish(at: At) -> list[str]:
    one, value = at.written.one, at.node.input[0]
    scaled = one("Mul", value, at.number(float(at.given.get("alpha", 1.0))))
    return [one("Mul", value, one("Sigmoid", scaled))]


def _reverse_sequence(at: At) -> list[str]:
    lengths = at.constant(1)
    if lengths is None:
        raise refused(at.node, "the lengths that it turns around are known only when it runs")
    batch, time = int(at.given.get("batch_axis", 1)), int(at.given.get("time_axis", 0))
    shape = at.shape(0)
    places = np.tile(np.arange(shape[time]), (shape[batch], 1))
    for row, length in zip(places, lengths.tolist(), strict=True):
        row[:length] = row[:length][::-1]
    places = places if batch < time else places.T
    wide = [extent if axis in (batch, time) else 1 for axis, extent in enumerate(shape)]
    whole = np.broadcast_to(places.reshape(wide), shape).astype(np.int64)
    return [at.written.one("GatherElements", at.node.input[0], at.written.weight(whole), axis=time)]


def _col2im(at: At) -> list[str]:
    """A transposed convolution with a kernel that puts every row of a block in its place."""
    image, block = at.constant(1), at.constant(2)
    if image is None or block is None:
        raise refused(at.node, "its image_shape or block_shape is known only when it runs")
    axes, size = len(block), int(np.prod(block))
    strides = list(at.given.get("strides") or [1] * axes)
    dilations = list(at.given.get("dilations") or [1] * axes)
    pads = list(at.given.get("pads") or [0] * (2 * axes))
    rows, columns = at.shape(0)[:2]
    channels = columns // size
    whole = [int(i) + pads[a] + pads[axes + a] for a, i in enumerate(image)]
    spans = [dilations[a] * (int(b) - 1) + 1 for a, b in enumerate(block)]
    steps = [(w - s) // stride + 1 for w, s, stride in zip(whole, spans, strides, strict=True)]
    left = [(w - s) % stride for w, s, stride in zip(whole, spans, strides, strict=True)]
    kernel = np.tile(np.eye(size, dtype=at.dtype(0)), (channels, 1))
    kernel = kernel.reshape(columns, 1, *(int(each) for each in block))
    source = at.reshaped(at.node.input[0], (rows, columns, *steps))
    made = at.written.one(
        *("ConvTranspose", source, at.written.weight(kernel)),
        group=channels,
        strides=strides,
        dilations=dilations,
        pads=pads,
        output_padding=left,
    )
    return [made]


def _det(at: At) -> list[str]:
    """By the first row's minors, of two or three rows."""
    one, extent = at.written.one, at.shape(0)[-1]
    if extent not in (2, 3):
        raise refused(at.node, f"the determinant of {extent} rows: expected 2 or 3")

    def entry(row: int, column: int) -> str:
        picked = one("Gather", at.node.input[0], at.integer(row), axis=-2)
        return one("Gather", picked, at.integer(column), axis=-1)

    def minor(rows: tuple[int, int], columns: tuple[int, int]) -> str:
        (a, b), (c, d) = rows, columns
        left = one("Mul", entry(a, c), entry(b, d))
        return one("Sub", left, one("Mul", entry(a, d), entry(b, c)))

    if extent == 2:
        return [minor((0, 1), (0, 1))]
    parts = [
        one("Mul", entry(0, column), minor((1, 2), rest))
        for column, rest in ((0, (1, 2)), (1, (0, 2)), (2, (0, 1)))
    ]
    return [one("Add", one("Sub", parts[0], parts[1]), parts[2])]


# Numbers of a table of waves.
_MOST_WAVES: Final = 1 << 24


def _waves(at: At, length: int, *, inverse: bool, onesided: bool) -> tuple[Array, Array]:
    """Cosines and sines of a transform, ``[length, results]``."""
    count = length // 2 + 1 if onesided else length
    if length * count > _MOST_WAVES:
        raise refused(
            at.node, f"a transform of {length} numbers: expected {math.isqrt(_MOST_WAVES)} at most"
        )
    turns = np.outer(np.arange(length), np.arange(count)) % length * (2 * np.pi / length)
    real, imaginary = np.cos(turns), np.sin(turns) * (1 if inverse else -1)
    scale = 1 / length if inverse else 1.0
    return (real * scale).astype(at.dtype(0)), (imaginary * scale).astype(at.dtype(0))


def _transformed(at: At, parts: list[str], waves: tuple[Array, Array]) -> str:
    """Products of the last axis of one or two parts with waves, the two results last."""
    one, (real, imaginary) = at.written.one, map(at.written.weight, waves)
    results = [one("MatMul", parts[0], real), one("MatMul", parts[0], imaginary)]
    if len(parts) > 1:
        results[0] = one("Sub", results[0], one("MatMul", parts[1], imaginary))
        results[1] = one("Add", results[1], one("MatMul", parts[1], real))
    last = at.whole(-1)
    return at.written.joined([one("Unsqueeze", each, last) for each in results], -1)


def _dft(at: At) -> list[str]:
    """A transform of a known length along one axis; the last one holds real and imaginary."""
    shape, rank = at.shape(0), len(at.shape(0))
    by_input = at.written.opset >= _AXIS_OF_DFT
    given = at.constant(2) if by_input and len(at.node.input) > 2 else None
    axis = int(at.given.get("axis", 1)) if not by_input else -2 if given is None else int(given)
    axis %= rank
    if len(at.node.input) > 1 and at.node.input[1]:
        length = at.constant(1)
        if length is None or int(length) != shape[axis]:
            raise refused(at.node, "dft_length is not the extent of its input")
    order = [*(each for each in range(rank - 1) if each != axis), axis]
    one, last = at.written.one, at.whole(-1)
    pieces = at.written.parts(at.node.input[0], [1] * shape[-1], -1)
    parts = [one("Transpose", one("Squeeze", piece, last), perm=[*order]) for piece in pieces]
    inverse, onesided = bool(at.given.get("inverse")), bool(at.given.get("onesided"))
    if inverse and onesided:
        raise refused(at.node, "an inverse transform of one side: expected both sides")
    waves = _waves(at, shape[axis], inverse=inverse, onesided=onesided)
    made = _transformed(at, parts, waves)
    back = [int(each) for each in np.argsort([*order, rank - 1])]
    return [one("Transpose", made, perm=back)]


# DFT takes its axis as an input from here on.
_AXIS_OF_DFT: Final = 20


def _stft(at: At) -> list[str]:
    """Windows of a signal, each times the window's weights, and their transforms."""
    shape, step = at.shape(0), at.constant(1)
    window = at.constant(2) if len(at.node.input) > 2 and at.node.input[2] else None
    given = at.constant(3) if len(at.node.input) > 3 else None
    if step is None or (window is None and given is None):
        raise refused(at.node, "its frame_step, window or frame_length is known only when it runs")
    if len(shape) == 3 and shape[-1] == 2:
        raise refused(at.node, "a signal of complex numbers: expected real ones")
    length = int(given) if given is not None else len(window)  # type: ignore[arg-type]
    frames = (shape[1] - length) // int(step) + 1
    cosines, sines = _waves(at, length, inverse=False, onesided=bool(at.given.get("onesided", 1)))
    if frames * length > _MOST_WAVES:
        raise refused(at.node, f"{frames} windows of {length}: expected {_MOST_WAVES} numbers")
    places = np.arange(frames)[:, None] * int(step) + np.arange(length)
    signal = at.reshaped(at.node.input[0], (shape[0], shape[1]))
    pieces = at.written.one("Gather", signal, at.written.weight(places), axis=1)
    if window is not None:
        cosines, sines = cosines * window[:, None], sines * window[:, None]
    waves = cosines.astype(at.dtype(0)), sines.astype(at.dtype(0))
    return [_transformed(at, [pieces], waves)]


_WRITERS: Final[dict[str, _Writer]] = {
    "Col2Im": _col2im,
    "DFT": _dft,
    "Det": _det,
    "IsInf": _is_inf,
    "LpNormalization": _lp_normalization,
    "ReverseSequence": _reverse_sequence,
    "STFT": _stft,
    "Swish": _swish,
}
