"""What the backends for torch modules do with a recorded one; ``exhaustive`` has TVM and a device.

In processes of their own, as `tapml compare` loads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from tapml.backends.finding import find_backend
from tapml.backends.runner import Runner
from tapml.isolate.pool import Pool
from tests.comparing.small_cnn import NODES, make_images

DEADLINE = 500.0
MODULES = ["torch-eager", "torch-eager:math", "torch-compile:aot-eager"]
JOBS = [f"{__name__}:{name}" for name in ("record", "module_on", "onnx_on")]


def record(folder: str) -> None:
    """A module with attention, a part of a tuple, and a free batch."""
    import torch

    import tapml

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.wide = torch.nn.Linear(8, 24)
            self.last = torch.nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            query, key, value = self.wide(x).chunk(3, dim=-1)
            mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value)
            result: torch.Tensor = self.last(mixed).softmax(-1)
            return result

    tapml.from_torch(Net(), [torch.rand(3, 4, 8)], dynamic=[{0: "batch"}]).save(folder)


def _load(name: str, path: str) -> Runner:
    backend = find_backend(name)
    runner: Runner = import_module(f"{backend.package}.runner").load(Path(path), backend.variant)
    return runner


def _check(runner: Runner, inputs: dict[str, np.ndarray], node: str) -> None:
    """The last hidden state is the output, and a node alone repeats its own."""
    outputs, hidden = runner.run(inputs), runner.hidden({k: v[:1] for k, v in inputs.items()})
    (name,) = outputs
    np.testing.assert_allclose(outputs[name][:1], hidden[name][0], rtol=1e-4, atol=1e-6)
    (found,) = (each for each in runner.nodes() if each.name == node)
    values = [hidden[name][place] for name, place in found.sources]
    (alone,) = runner.replay(node, values)
    np.testing.assert_allclose(alone, hidden[node][0], rtol=1e-4, atol=1e-6)


def module_on(given: dict[str, str]) -> list[list[float]]:
    runner = _load(given["backend"], given["model"])
    inputs = {"x": np.random.default_rng(0).random((3, 4, 8), np.float32)}
    assert [each.shape for each in runner.inputs()] == [(None, 4, 8)]
    assert [each.kind for each in runner.nodes()] == [
        "linear", "chunk", "scaled_dot_product_attention", "linear", "softmax",
    ]  # fmt: skip
    _check(runner, inputs, "scaled_dot_product_attention")
    (output,) = runner.run(inputs).values()
    found: list[list[float]] = output[:, 0].astype(float).tolist()
    return found


def onnx_on(given: dict[str, str]) -> None:
    runner = _load(given["backend"], given["model"])
    assert [each.name for each in runner.nodes()] == NODES
    _check(runner, {"image": make_images(3)["x"]}, "norm1")


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(JOBS, workers=1, deadline_seconds=DEADLINE) as found:
        yield found


def test_all_backends_for_modules_agree(pool: Pool, tmp_path: Path) -> None:
    model = tmp_path / "net"
    pool.submit(JOBS[0], str(model)).result()
    found = {
        name: np.array(pool.submit(JOBS[1], {"backend": name, "model": str(model)}).result())
        for name in MODULES
    }
    for name, values in found.items():
        np.testing.assert_allclose(values, found["torch-eager"], rtol=1e-5, err_msg=name)
