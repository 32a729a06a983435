"""Inductor, TVM and a device of tapml: modules and ONNX models, against PyTorch and themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tapml.backends.tapml_device.runner import load
from tapml.isolate.pool import Pool
from tapml_targets.errors import UnsupportedOperatorError
from tests.backends.end_to_end.test_programs import DEADLINE, JOBS
from tests.comparing.small_cnn import write_cnn

LACKS = f"{__name__}:lacks_an_operation"
EXTENT = f"{__name__}:gives_an_extent"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool([*JOBS, LACKS, EXTENT], workers=1, deadline_seconds=DEADLINE) as found:
        yield found


@pytest.mark.parametrize("name", ["torch-compile:inductor", "tvm", "cpu"])
def test_a_module_agrees_with_pytorch(name: str, pool: Pool, tmp_path: Path) -> None:
    model = str(tmp_path / "net")
    pool.submit(JOBS[0], model).result()
    found, right = (
        pool.submit(JOBS[1], {"backend": each, "model": model}).result()
        for each in (name, "torch-eager")
    )
    np.testing.assert_allclose(found, right, rtol=1e-5)


def lacks_an_operation(folder: str) -> None:
    import torch

    import tapml

    class Best(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.topk(2).values

    tapml.from_torch(Best(), [torch.rand(3, 4)]).save(folder)
    with pytest.raises(UnsupportedOperatorError, match="'topk' does not compile for cpu"):
        load(Path(folder), "cpu").run({"x": np.ones((3, 4), np.float32)})


def test_what_does_not_compile_for_a_device_is_unsupported(pool: Pool, tmp_path: Path) -> None:
    pool.submit(LACKS, str(tmp_path / "best")).result()


@pytest.mark.parametrize("name", ["tvm", "cpu"])
def test_an_onnx_model(name: str, pool: Pool, tmp_path: Path) -> None:
    model = write_cnn(tmp_path)
    pool.submit(JOBS[2], {"backend": name, "model": str(model)}).result()


def gives_an_extent(folder: str) -> None:
    """TVM gives a number where a tensor has no axes."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    from tapml.backends.tvm.runner import load as load_tvm

    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "second"], ["extent"]),
        helper.make_node("Cast", ["extent"], ["y"], to=TensorProto.FLOAT),
    ]
    graph = helper.make_graph(
        nodes, "extent", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(np.array(1), "second")],
    )  # fmt: skip
    path = Path(folder) / "extent.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    runner, x = load_tvm(path, ""), {"x": np.ones((1, 5), np.float32)}
    for node, dtype in (("extent", np.int64), ("y", np.float32)):
        (made,) = runner.prefix(node, x)
        assert made.shape == () and made.dtype == dtype and made == 5


def test_an_extent_is_an_array_on_tvm(pool: Pool, tmp_path: Path) -> None:
    pool.submit(EXTENT, str(tmp_path)).result()
