"""Nodes without a converter are written out, and give what onnxruntime gives for the file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tapml.importing.importer import import_model
from tapml.importing.onnx_import import _check_converters
from tapml.models.huggingface import load_any
from tapml.models.onnx_file import OnnxModel, load_onnx
from tapml.rooting.own_forward import root_wrapper
from tapml.rooting.rooting import root
from tapml_targets.errors import InputError, MismatchError, UnsupportedOperatorError

RANDOM = np.random.default_rng(0)
node = helper.make_node
NEWEST = 23


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return (RANDOM.standard_normal(shape) * 0.3).astype(np.float32)


def write(
    path: Path,
    nodes: list[Any],
    stored: dict[str, Any] | None = None,
    *,
    inputs: dict[str, tuple[int, ...]] | None = None,
    element: int = TensorProto.FLOAT,
    opset: int = 17,
) -> Path:
    """A model of `nodes`; its outputs are those of the last one, without shapes."""
    given = inputs or {"x": (2, 4, 8)}
    ins = [helper.make_tensor_value_info(name, TensorProto.FLOAT, s) for name, s in given.items()]
    outs = [helper.make_tensor_value_info(name, element, None) for name in nodes[-1].output]
    tensors = [numpy_helper.from_array(np.asarray(a), name) for name, a in (stored or {}).items()]
    ids = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "net", ins, outs, tensors)
    onnx.save(helper.make_model(graph, opset_imports=ids, ir_version=10), path)
    return path


def body(nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> Any:
    """A graph inside of a node: of names with their elements and extents."""
    ports = [[helper.make_tensor_value_info(*each) for each in side] for side in (inputs, outputs)]
    return helper.make_graph(nodes, "body", *ports)


F, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def microsoft(operator: str, *inputs: str, **given: Any) -> list[Any]:
    return [node(operator, inputs, ["y"], domain="com.microsoft", name="m", **given)]


def counted(path: Path) -> Path:
    """Five steps of a loop, whose values are collected as well."""
    step = body(
        [
            node("MatMul", ["v", "w"], ["m"]),
            node("Tanh", ["m"], ["vo"]),
            node("Identity", ["ci"], ["co"]),
            node("ReduceSum", ["vo", "axes"], ["sum"], keepdims=0),
        ],
        [("i", I64, []), ("ci", BOOL, []), ("v", F, [2, 4])],
        [("co", BOOL, []), ("vo", F, [2, 4]), ("sum", F, [2])],
    )
    loop = node("Loop", ["n", "", "x"], ["y", "ys"], body=step, name="loop")
    stored = {"n": np.array(5), "w": floats(4, 4), "axes": np.array([1])}
    return write(path, [loop], stored, inputs={"x": (2, 4)})


def ended(path: Path) -> Path:
    """A loop of at most six steps that ends where the largest number is small."""
    step = body(
        [
            node("Mul", ["v", "half"], ["vo"]),
            node("ReduceMax", ["vo"], ["most"], keepdims=0),
            node("Greater", ["most", "bound"], ["co"]),
        ],
        [("i", I64, []), ("ci", BOOL, []), ("v", F, [4])],
        [("co", BOOL, []), ("vo", F, [4])],
    )
    loop = node("Loop", ["n", "yes", "x"], ["y"], body=step, name="until_small")
    stored = {"n": np.array(6), "yes": np.array(True), "half": np.float32(0.5)}
    return write(path, [loop], stored | {"bound": np.float32(0.1)}, inputs={"x": (4,)})


def scanned(path: Path) -> Path:
    """A scan from the end, along the second axis, in a branch of an If."""
    step = body(
        [node("Add", ["h", "xt"], ["hn"]), node("Mul", ["hn", "hn"], ["ho"])],
        [("h", F, [2]), ("xt", F, [2])],
        [("hn", F, [2]), ("ho", F, [2])],
    )
    scan = node(
        "Scan", ["h0", "x"], ["last", "rows"], body=step, num_scan_inputs=1,
        scan_input_directions=[1], scan_output_directions=[1], scan_input_axes=[1],
        scan_output_axes=[1],
    )  # fmt: skip
    sides = (
        body([scan], [], [("rows", F, [2, 5])]),
        body([node("Neg", ["x"], ["n"])], [], [("n", F, [2, 5])]),
    )
    nodes = [
        node("ReduceSum", ["x"], ["s"], keepdims=0),
        node("Less", ["s", "zero"], ["c"]),
        node("If", ["c"], ["y"], then_branch=sides[0], else_branch=sides[1], name="choose"),
    ]
    return write(
        path, nodes, {"h0": floats(2), "zero": np.float32(0)}, inputs={"x": (2, 5)}, opset=16
    )


def quantized(path: Path) -> Path:
    """A convolution of codes between a quantization and its end."""
    weight = RANDOM.integers(-90, 90, (4, 3, 3, 3)).astype(np.int8)
    stored = {
        "s": np.float32(0.02), "z": np.array(128, np.uint8), "w": weight,
        "ws": np.full(4, 0.01, np.float32), "wz": np.zeros(4, np.int8), "ys": np.float32(0.05),
        "yz": np.array(110, np.uint8), "b": np.arange(4, dtype=np.int32),
    }  # fmt: skip
    names = ["q", "s", "z", "w", "ws", "wz", "ys", "yz", "b"]
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("QLinearConv", names, ["c"], pads=[1, 1, 1, 1], name="conv"),
        node("DequantizeLinear", ["c", "ys", "yz"], ["y"]),
    ]
    return write(path, nodes, stored, inputs={"x": (1, 3, 6, 6)})


def deep(path: Path) -> Path:
    """Four convolutions of codes, whose sums are as whole as onnxruntime's."""
    stored: dict[str, Any] = {
        "z": np.uint8(128),
        "wz": np.zeros(16, np.int8),
        "s": np.float32(0.02),
    }
    nodes, channels = [node("QuantizeLinear", ["x", "s", "z"], ["q0"])], 3
    for at in range(4):
        codes = RANDOM.integers(-127, 128, (16, channels, 3, 3)).astype(np.int8)
        # Of an even number of sums to a code one lies between two codes.
        scales = np.full(16, 1 / (380 if channels == 3 else 876), np.float32)
        bias = RANDOM.integers(-500, 500, 16).astype(np.int32)
        stored |= {f"w{at}": codes, f"ws{at}": scales, f"b{at}": bias}
        inputs = [f"q{at}", "s", "z", f"w{at}", f"ws{at}", "wz", "s", "z", f"b{at}"]
        nodes.append(node("QLinearConv", inputs, [f"q{at + 1}"], pads=[1, 1, 1, 1]))
        channels = 16
    nodes.append(node("DequantizeLinear", ["q4", "s", "z"], ["y"]))
    return write(path, nodes, stored, inputs={"x": (1, 3, 16, 16)})


def summed(path: Path) -> Path:
    """A product as quantize_dynamic of onnxruntime writes it."""
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        node("MatMulInteger", ["q", "w", "z", "wz"], ["i"]),
        node("Cast", ["i"], ["f"], to=F),
        node("Mul", ["f", "s"], ["y"]),
    ]
    weight = RANDOM.integers(-90, 90, (8, 6)).astype(np.int8)
    return write(path, nodes, {"w": weight, "wz": np.array(0, np.int8)})


def sized(path: Path) -> Path:
    """Extents that an Expand reads, from the shape of what was reshaped."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "places"], ["t"]),
        node("ConstantOfShape", ["three"], ["ones"], value=helper.make_tensor("v", I64, [1], [1])),
        node("Mul", ["ones", "minus"], ["neg"]),
        node("Equal", ["t", "neg"], ["e"]),
        node("Where", ["e", "ones", "t"], ["wide"]),
        node("ReduceSum", ["x", "axes"], ["r"], keepdims=1),
        node("Expand", ["r", "wide"], ["y"]),
    ]
    whole = {"places": [0, 1, 2], "three": [3], "minus": [-1], "axes": [1]}
    return write(path, nodes, {name: np.array(each) for name, each in whole.items()})


_CODES = RANDOM.integers(0, 256, (6, 2, 8)).astype(np.uint8)
MODELS: dict[str, Callable[[Path], Path]] = {
    "a loop of five steps": counted,
    "a loop that ends earlier": ended,
    "a scan in a branch": scanned,
    "a convolution of codes": quantized,
    "a product of codes": summed,
    "extents of a shape": sized,
    "Attention": lambda path: write(
        path,
        [node("Attention", ["q", "k", "v"], ["y"], is_causal=1)],
        inputs={"q": (1, 4, 5, 8), "k": (1, 2, 5, 8), "v": (1, 2, 5, 8)},
        opset=NEWEST,
    ),
    "RotaryEmbedding": lambda path: write(
        path,
        [node("RotaryEmbedding", ["x", "c", "s"], ["y"])],
        {"c": floats(1, 4, 4), "s": floats(1, 4, 4)},
        inputs={"x": (1, 2, 4, 8)},
        opset=NEWEST,
    ),
    "IsInf": lambda path: write(
        path,
        [
            node("Div", ["x", "zero"], ["q"]),
            node("IsInf", ["q"], ["i"], detect_positive=0),
            node("Cast", ["i"], ["y"], to=TensorProto.FLOAT),
        ],
        {"zero": np.float32(0)},
    ),
    "ReverseSequence": lambda path: write(
        path,
        [node("ReverseSequence", ["x", "l"], ["y"], batch_axis=0, time_axis=1)],
        {"l": np.array([2, 4])},
    ),
    "Col2Im": lambda path: write(
        path,
        [node("Col2Im", ["x", "i", "b"], ["y"], strides=[2, 1], pads=[0, 1, 1, 0])],
        {"i": np.array([5, 4]), "b": np.array([2, 2])},
        inputs={"x": (1, 8, 12)},
        opset=18,
    ),
    "Det": lambda path: write(path, [node("Det", ["x"], ["y"])], inputs={"x": (2, 3, 3)}),
    "DFT": lambda path: write(path, [node("DFT", ["x"], ["y"], axis=1)], inputs={"x": (1, 8, 2)}),
    "STFT": lambda path: write(
        path,
        [node("STFT", ["x", "st", "w"], ["y"])],
        {"st": np.array(8), "w": np.hanning(16).astype(np.float32)},
        inputs={"x": (1, 64, 1)},
    ),
    "convolutions of codes": deep,
    "codes of zeros alone": lambda path: write(
        path,
        [
            node("Mul", ["x", "none"], ["v"]),
            node("DynamicQuantizeLinear", ["v"], ["q", "s", "z"]),
            node("DequantizeLinear", ["q", "s", "z"], ["y"]),
        ],
        {"none": np.float32(0)},
    ),
    "a branch of bool": lambda path: write(
        path,
        [
            node("ReduceSum", ["x"], ["s"], keepdims=0),
            node("Greater", ["s", "zero"], ["c"]),
            node("If", ["c"], ["k"], then_branch=_sided("Greater"), else_branch=_sided("Less")),
            node("Cast", ["k"], ["y"], to=F),
        ],
        {"zero": np.float32(0)},
    ),
    "Gelu": lambda path: write(path, microsoft("BiasGelu", "x", "b"), {"b": floats(8)}),
    "FusedMatMul": lambda path: write(
        path, microsoft("FusedMatMul", "x", "w", transB=1, alpha=0.25), {"w": floats(2, 6, 8)}
    ),
    "SkipLayerNormalization": lambda path: write(
        path,
        microsoft("SkipLayerNormalization", "x", "s", "g", "b", epsilon=1e-5),
        {"s": floats(2, 4, 8), "g": floats(8) + 1, "b": floats(8)},
    ),
    # Numbers so small that the default epsilon counts, which is 1e-12 of these two alone.
    "SkipSimplifiedLayerNormalization": lambda path: write(
        path,
        [
            node("Mul", ["x", "few"], ["v"]),
            *microsoft("SkipSimplifiedLayerNormalization", "v", "s", "g"),
        ],
        {"few": np.float32(1e-3), "s": floats(2, 4, 8) / 1e3, "g": floats(8) + 1},
    ),
    "an attention with a mask": lambda path: write(
        path,
        microsoft("Attention", "x", "w", "b", "m", num_heads=2),
        {"w": floats(8, 24), "b": floats(24), "m": np.array([[1] * 4, [1, 1, 0, 0]], np.int32)},
    ),
    "MatMulNBits": lambda path: write(
        path,
        microsoft("MatMulNBits", "x", "q", "s", K=32, N=6, bits=4, block_size=16),
        {"q": _CODES, "s": np.abs(floats(12)) + 0.05},
        inputs={"x": (2, 3, 32)},
    ),
}


def _sided(operator: str) -> Any:
    return body([node(operator, ["x", "zero"], ["k"])], [], [("k", BOOL, [2, 4, 8])])


@pytest.mark.parametrize("name", MODELS)
def test_a_node_written_out_gives_what_onnxruntime_gives(name: str, tmp_path: Path) -> None:
    model = load_onnx(MODELS[name](tmp_path / "net.onnx"))
    _check_converters(model)
    assert not any(each.domain for each in model.folded.graph.node)
    assert root_wrapper(model) < 1e-5


def test_a_loop_is_rooted_step_by_step(tmp_path: Path) -> None:
    model = load_any(counted(tmp_path / "net.onnx"))
    assert isinstance(model, OnnxModel)
    report = root(model, import_model(model))
    assert not report.not_comparable
    assert report.worst is not None
    assert report.worst.ratio < 0.1


def endless(path: Path) -> Path:
    model = onnx.load(ended(path))
    model.graph.node[0].input[0] = ""
    onnx.save(model, path)
    return path


def either(path: Path) -> Path:
    """Branches of other extents, which they do not declare."""
    sides = [
        body([node(operator, ["x"], ["k"], **given)], [], [("k", F, None)])
        for operator, given in (("ReduceSum", {"keepdims": 0}), ("Neg", {}))
    ]
    nodes = [
        node("ReduceSum", ["x"], ["s"], keepdims=0),
        node("Greater", ["s", "zero"], ["c"]),
        node("If", ["c"], ["y"], then_branch=sides[0], else_branch=sides[1], name="choose"),
    ]
    return write(path, nodes, {"zero": np.float32(0)}, inputs={"x": (4,)})


def long(path: Path) -> Path:
    """4,096 steps of a graph of 40 nodes."""
    model = onnx.load(counted(path))
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array(4096), "n"))
    step = model.graph.node[0].attribute[0].g
    step.node[1].input[0] = "c39"
    chain = [node("Sin", [f"c{at - 1}" if at else "m"], [f"c{at}"]) for at in range(40)]
    rest = [*step.node[:1], *chain, *step.node[1:]]
    del step.node[:]
    step.node.extend(rest)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (either, r"If in node 'choose' .*\[\] or \[4\] are the extents of a result"),
        (long, r"Loop in node 'loop' .* it is 180224 nodes: expected at most"),
        (
            lambda path: write(
                path, [node("DFT", ["x"], ["y"], name="t")], inputs={"x": (1, 5000, 1)}
            ),
            "DFT in node 't' .* a transform of 5000 numbers: expected 4096 at most",
        ),
        (endless, "Loop in node 'until_small' .* the number of its steps is known only when"),
        (
            lambda path: write(path, [node("RandomNormalLike", ["x"], ["y"], name="noise")]),
            "RandomNormalLike in node 'noise' .* as an input",
        ),
        (
            lambda path: write(path, [node("NonZero", ["x"], ["y"], name="n")], element=I64),
            "NonZero in node 'n' .* how many results there are",
        ),
        (
            lambda path: write(
                path,
                [node("Attention", ["x", "x", "x", "", "p", "p"], ["y", "k", "v"], name="past")],
                {"p": floats(1, 2, 3, 8)},
                inputs={"x": (1, 2, 4, 8)},
                opset=NEWEST,
            ),
            "Attention in node 'past' .* its input 3 is left out, and later ones are there",
        ),
        (
            lambda path: write(path, microsoft("CropAndResize", "x")),
            r"com\.microsoft\.CropAndResize in node 'm'",
        ),
    ],
)
def test_what_is_known_only_when_it_runs_is_refused_by_its_node(
    make: Callable[[Path], Path], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedOperatorError, match=said):
        load_onnx(make(tmp_path / "net.onnx"))


def test_sizes_that_a_branch_does_not_take_are_told_from_a_damaged_file(tmp_path: Path) -> None:
    sides = (
        body([node("MatMul", ["x", "four"], ["a"])], [], [("a", F, ["n", 3])]),
        body([node("MatMul", ["x", "five"], ["b"])], [], [("b", F, ["n", 3])]),
    )
    chosen = node("If", ["c"], ["y"], then_branch=sides[0], else_branch=sides[1], name="choose")
    nodes = [
        node("ReduceSum", ["x"], ["s"], keepdims=0),
        node("Less", ["s", "zero"], ["c"]),
        chosen,
    ]
    stored = {"zero": np.float32(0), "four": floats(4, 3), "five": floats(5, 3)}
    path = write(tmp_path / "net.onnx", nodes, stored, inputs={"x": (2, 4)})
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "m"
    onnx.save(model, path)
    with pytest.raises(InputError, match=r"does not take inputs of these sizes: .*give others"):
        load_onnx(path, [(floats(2, 4), "x")])


def test_bfloat16_is_float32(tmp_path: Path) -> None:
    weight = helper.make_tensor("w", TensorProto.BFLOAT16, [8], floats(8))
    nodes = [
        node("Cast", ["x"], ["b"], to=TensorProto.BFLOAT16),
        node("Mul", ["b", "w"], ["y"]),
    ]
    path = write(tmp_path / "net.onnx", nodes, element=TensorProto.BFLOAT16)
    model = onnx.load(path)
    model.graph.initializer.append(weight)
    onnx.save(model, path)
    loaded = load_onnx(path)
    assert "bfloat16 numbers are float32 here" in loaded.notes[0]
    assert [each.dtype for each in loaded.stored.outputs] == ["float32"]
    assert root_wrapper(loaded) < 1e-6


def test_texts_and_float64_are_refused_with_what_to_do(tmp_path: Path) -> None:
    path = write(tmp_path / "net.onnx", [node("Identity", ["x"], ["y"])])
    model = onnx.load(path)
    for element, said in ((TensorProto.STRING, "encoded before the model"), (11, "to float32")):
        for each in (*model.graph.input, *model.graph.output):
            each.type.tensor_type.elem_type = element
        onnx.save(model, path)
        with pytest.raises(InputError, match=said):
            load_onnx(path)


def test_tensors_of_a_loop_are_stored_once(tmp_path: Path) -> None:
    model = onnx.load(counted(tmp_path / "net.onnx"))
    step = model.graph.node[0].attribute[0].g
    step.initializer.append(model.graph.initializer.pop(1))
    onnx.save(model, tmp_path / "net.onnx")
    loaded = load_onnx(tmp_path / "net.onnx")
    assert [list(each.dims) for each in loaded.folded.graph.initializer].count([4, 4]) == 1
    assert root_wrapper(loaded) < 1e-6


def coded(path: Path) -> OnnxModel:
    """Two layers of codes with biases, and the number of the largest output as a label."""
    made: dict[str, Any] = {
        "s": np.float32(0.02),
        "z": np.uint8(120),
        "years": np.arange(2000, 2016),
    }
    nodes, last = [], "x"
    for at in range(2):
        made |= {f"w{at}": floats(16, 16), f"b{at}": floats(16)}
        nodes += [
            node("QuantizeLinear", [last, "s", "z"], [f"q{at}"]),
            node("DequantizeLinear", [f"q{at}", "s", "z"], [f"d{at}"]),
            node("MatMul", [f"d{at}", f"w{at}"], [f"m{at}"]),
            node("Add", [f"m{at}", f"b{at}"], [last := f"a{at}"]),
        ]
    nodes.append(node("ArgMax", [last], ["best"], axis=1, keepdims=0, name="best"))
    nodes.append(node("Gather", ["years", "best"], ["label"]))
    write(path, nodes, made, inputs={"x": (4, 16)}, element=I64)
    model = onnx.load(path)
    model.graph.output.insert(0, helper.make_tensor_value_info(last, F, None))
    onnx.save(model, path)
    return load_onnx(path)


def test_a_fault_in_a_model_of_codes_is_told(tmp_path: Path) -> None:
    model = coded(tmp_path / "net.onnx")
    # onnxruntime may not make codes of its biases.
    assert root_wrapper(model) < 1e-3

    def without_a_bias(graph: Any) -> None:
        for each in graph.initializer:
            if each.name == "b1":
                values = numpy_helper.to_array(each).copy()
                values[np.abs(values).argmin()] += 0.1
                each.CopyFrom(numpy_helper.from_array(values, each.name))

    def another_label(graph: Any) -> None:
        next(each for each in graph.node if each.op_type == "ArgMax").op_type = "ArgMin"

    for fault, said in ((without_a_bias, "at the usual place"), (another_label, "output 1 by")):
        wrong = onnx.ModelProto()
        wrong.CopyFrom(model.folded)
        fault(wrong.graph)
        with pytest.raises(MismatchError, match=said):
            root_wrapper(replace(model, folded=wrong))


def test_small_outputs_are_compared_too(tmp_path: Path) -> None:
    path = write(
        tmp_path / "net.onnx", [node("MatMul", ["x", "w"], ["y"])], {"w": floats(8, 3) / 1e7}
    )
    model = load_onnx(path)
    root_wrapper(model)
    weights = model.folded.graph.initializer[0]
    weights.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(weights), weights.name))
    with pytest.raises(MismatchError):
        root_wrapper(model)


def test_codes_are_rounded_by_one_node(tmp_path: Path) -> None:
    """Bounds and a cast apart repeat what comes before them, activation and sum, in a kernel."""
    model = load_onnx(MODELS["convolutions of codes"](tmp_path / "net.onnx"))
    kinds = [each.op_type for each in model.folded.graph.node]
    assert kinds.count("QuantizeLinear") == 5
    assert not {"Clip", "Round", "Max", "Min"} & set(kinds)
