"""What every backend for ONNX does with one model.

In processes of their own, as `tapml compare` loads them: where OpenVINO is loaded, its threading
library keeps Intel's OpenCL driver from loading, and other tests need that.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from tapml.backends.finding import find_backend
from tapml.backends.runner import Runner, RunsPrefixes
from tapml.isolate.pool import Pool
from tapml_targets.errors import InputError
from tests.comparing.small_cnn import NODES, make_images, write_cnn

NAMES = ["onnxruntime:all", "onnxruntime:basic", "onnxruntime:extended", "onnxruntime:disabled",
         "onnx-reference", "openvino"]  # fmt: skip
CHECKS = ["has_inputs_nodes_and_versions", "ends_in_its_outputs", "refuses_what_is_no_model",
          "takes_an_instance_a_call", "keeps_a_constant_of_a_node_alone",
          "runs_a_node_alone_whose_subgraphs_read_from_outside"]  # fmt: skip


def load(name: str, path: Path) -> Runner:
    backend = find_backend(name)
    runner: Runner = import_module(f"{backend.package}.runner").load(path, backend.variant)
    return runner


def has_inputs_nodes_and_versions(given: dict[str, str]) -> None:
    runner = load(given["backend"], Path(given["model"]))
    (image,) = runner.inputs()
    assert (image.name, image.shape, image.dtype) == ("image", (None, 1, 8, 8), "float32")
    assert [each.name for each in runner.nodes()] == NODES
    assert runner.nodes()[1].sources == (("conv1", 0),)
    assert all(runner.versions().values())


def ends_in_its_outputs(given: dict[str, str]) -> None:
    """The last hidden state is the output; a node alone and the model until it repeat its own."""
    runner = load(given["backend"], Path(given["model"]))
    assert isinstance(runner, RunsPrefixes)
    inputs = {"image": make_images(3)["x"]}
    outputs, hidden = runner.run(inputs), runner.hidden(inputs)
    assert list(outputs) == ["classes"]
    assert set(hidden) == set(NODES)
    np.testing.assert_allclose(outputs["classes"], hidden["classes"][0], rtol=1e-4, atol=1e-6)
    for node in runner.nodes():
        values = [inputs[name] if name in inputs else hidden[name][i] for name, i in node.sources]
        (alone,) = runner.replay(node.name, values)
        (until,) = runner.prefix(node.name, inputs)
        for each in (alone, until):
            np.testing.assert_allclose(each, hidden[node.name][0], rtol=1e-3, atol=1e-5)


def takes_an_instance_a_call(given: dict[str, str]) -> None:
    """Of a file that fixes one, whatever the data has; and -1 is an extent that may be any."""
    import onnx

    model = onnx.load(given["model"])
    free = Path(given["model"]).with_name(f"free {given['backend']}.onnx")
    single = free.with_name(f"single {given['backend']}.onnx")
    for extent, path in ((-1, free), (1, single)):
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = extent
        onnx.save(model, path)
    inputs = {"image": make_images(3)["x"]}
    runner = load(given["backend"], single)
    assert runner.inputs()[0].shape == (1, 1, 8, 8)
    found = runner.run(inputs)["classes"]
    runner = load(given["backend"], free)
    assert runner.inputs()[0].shape == (None, 1, 8, 8)
    np.testing.assert_allclose(found, runner.run(inputs)["classes"], rtol=1e-4, atol=1e-6)


def keeps_a_constant_of_a_node_alone(given: dict[str, str]) -> None:
    import onnx
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Constant", [], ["count"], value_ints=[2]),
        helper.make_node("TopK", ["x", "count"], ["best", "places"]),
    ]
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", extent])
              for name, extent in (("x", 5), ("best", 2))]  # fmt: skip
    graph = helper.make_graph(nodes, "best", shapes[:1], shapes[1:])
    path = Path(given["model"]).with_name(f"best {given['backend']}.onnx")
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    x = np.array([[3.0, 1, 5, 2, 4]], np.float32)
    best, places = load(given["backend"], path).replay("best", [x, np.array([2])])
    assert (best.tolist(), places.tolist()) == ([[5, 4]], [[2, 4]])


def runs_a_node_alone_whose_subgraphs_read_from_outside(given: dict[str, str]) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    def branch(kind: str) -> onnx.GraphProto:
        result = helper.make_tensor_value_info(kind, TensorProto.FLOAT, ["n", 3])
        return helper.make_graph([helper.make_node(kind, ["twice", "w"], [kind])], kind, [],
                                 [result])  # fmt: skip

    nodes = [
        helper.make_node("Add", ["x", "x"], ["twice"]),
        helper.make_node("If", ["flag"], ["y"], then_branch=branch("Mul"),
                         else_branch=branch("Sub")),
    ]  # fmt: skip
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in "xy")
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    weights = [numpy_helper.from_array(np.array([3, 4, 5], np.float32), "w")]
    graph = helper.make_graph(nodes, "branches", [x, flag], [y], weights)
    path = Path(given["model"]).with_name(f"branches {given['backend']}.onnx")
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    runner = load(given["backend"], path)
    assert runner.nodes()[1].sources == (("flag", 0), ("twice", 0), ("twice", 0))
    twice = np.ones((2, 3), np.float32)
    for value, expected in ((True, [3, 4, 5]), (False, [-2, -3, -4])):
        (made,) = runner.replay("y", [np.array(value), twice, twice])
        assert made.tolist() == [expected] * 2


def refuses_what_is_no_model(given: dict[str, str]) -> None:
    broken = Path(given["model"]).with_name(f"broken {given['backend']}") / "model.onnx"
    broken.parent.mkdir()
    broken.write_bytes(b"\x08\x01 broken")
    with pytest.raises(InputError, match=r"model\.onnx is no"):
        load(given["backend"], broken)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool([f"{__name__}:{check}" for check in CHECKS], workers=1) as found:
        yield found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cnn(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", NAMES)
def test_a_backend(name: str, check: str, model: Path, pool: Pool) -> None:
    pool.submit(f"{__name__}:{check}", {"backend": name, "model": str(model)}).result()
