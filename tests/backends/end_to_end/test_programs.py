"""What the backends for torch modules do with a recorded one; ``exhaustive`` has TVM and a device.

In processes of their own, as `tapml compare` loads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from tapml.backends.finding import describe, find_backend
from tapml.backends.runner import Runner, RunsPrefixes
from tapml.isolate.environment import Environment
from tapml.isolate.pool import Pool
from tests.comparing.small_cnn import NODES, make_images

DEADLINE = 500.0
MODULES = ["torch-eager", "torch-eager:math", "torch-eager:flash", "torch-compile:aot-eager",
           "onnxruntime", "openvino"]  # fmt: skip
JOBS = [f"{__name__}:{name}" for name in ("record", "module_on", "onnx_on", "writes_in_place",
                                           "language_model", "encoder_decoder")]  # fmt: skip


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
    """The last hidden state is the output; a node alone and the model until it repeat its own."""
    assert isinstance(runner, RunsPrefixes)
    outputs, hidden = runner.run(inputs), runner.hidden({k: v[:1] for k, v in inputs.items()})
    (name,) = outputs
    np.testing.assert_allclose(outputs[name][:1], hidden[name][0], rtol=1e-4, atol=1e-6)
    (found,) = (each for each in runner.nodes() if each.name == node)
    values = [hidden[name][place] for name, place in found.sources]
    (alone,) = runner.replay(node, values)
    (until,) = runner.prefix(node, inputs)
    np.testing.assert_allclose(alone, hidden[node][0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(until[:1], alone, rtol=1e-4, atol=1e-6)


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


def writes_in_place(folder: str) -> None:
    """Of bfloat16 values, of which a later operation overwrites one through a view of it."""
    import torch

    import tapml

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            low = (x * 3).to(torch.bfloat16)
            low.view(-1).neg_()
            return low.float() + 1

    tapml.from_torch(Net(), [torch.rand(3, 4)]).save(folder)
    runner = _load("torch-eager", folder)
    x = np.arange(12, dtype=np.float32).reshape(3, 4) / 8
    hidden = runner.hidden({"x": x})
    assert [node.name for node in runner.nodes()] == ["mul", "to", "view", "neg_", "to_1", "add"]
    (low,) = hidden["to"]
    assert low.dtype == np.float32
    np.testing.assert_array_equal(low, x * 3)
    np.testing.assert_array_equal(hidden["neg_"][0], -x.ravel() * 3)
    (alone,) = runner.replay("neg_", [low.ravel()])
    np.testing.assert_array_equal(alone, -x.ravel() * 3)
    (output,) = runner.run({"x": x}).values()
    np.testing.assert_array_equal(output, 1 - x * 3)
    # What bfloat16 cannot hold is rounded as the program does, also alone.
    (alone,) = runner.replay("neg_", [np.array([1.001] * 12, np.float32)])
    assert set(alone.tolist()) == {-1.0}
    # OpenVINO is handed the bits: NumPy has no such dtype.
    (alone,) = _load("openvino", folder).replay("to_1", [x * 3])
    np.testing.assert_array_equal(alone, x * 3)
    _check_exported(f"{folder}-exported")


def _check_exported(folder: str) -> None:
    """What is written through views of a value is in its ONNX model, too."""
    import torch

    import tapml

    class Shifted(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.zeros_like(x)
            y[:, 1:] = x[:, :-1].double()
            y[-1, ::2].fill_(5)
            y.view(-1).mul_(2)
            counts = torch.zeros_like(x, dtype=torch.int64)
            counts[:, 0].fill_(1.7)
            return y + counts

    tapml.from_torch(Shifted(), [torch.rand(3, 4)]).save(folder)
    x = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    (found,) = _load("onnxruntime", folder).run({"x": x}).values()
    np.testing.assert_array_equal(found, [[1, 2, 4, 6], [1, 10, 12, 14], [11, 18, 10, 22]])


def language_model(variant: str) -> None:
    """A decoder: a text a call, nodes with the paths of their layers, attention as one of them."""
    from tapml.models.resolve import zoo_folder

    runner = _load(f"torch-eager:{variant}", str(zoo_folder("pydoc-llama")))
    (tokens,) = runner.inputs()
    assert (tokens.name, tokens.shape, tokens.dtype) == ("token_ids", (1, None), "int64")
    layer = "model.layers.1.self_attn/"
    (attention,) = (
        each for each in runner.nodes() if each.name == f"{layer}scaled_dot_product_attention_1"
    )
    assert attention.sources[0][0].startswith(layer)
    inputs = {"token_ids": np.arange(20).reshape(2, 10) * 31}
    (logits,) = runner.run(inputs).values()
    assert logits.shape == (2, 10, 2000)
    # What follows changes no logits of what came before.
    (shorter,) = runner.run({"token_ids": inputs["token_ids"][:, :6]}).values()
    np.testing.assert_allclose(logits[:, :6], shorter, rtol=1e-4, atol=1e-4)
    _check(runner, inputs, attention.name)


def encoder_decoder(given: dict[str, str]) -> None:
    """A source and what the decoder reads: the class's own logits, with its own masks."""
    import torch
    from transformers import AutoModelForSeq2SeqLM, WhisperForConditionalGeneration

    from tests.models.families import make_family

    family = given["family"]
    folder = make_family(Path(given["folder"]), family)
    runner = _load("torch-eager", str(folder))
    written = np.array([[3, 8, 9], [3, 5, 0]])
    if family == "whisper":
        features = np.random.default_rng(0).standard_normal((2, 8, 40)).astype(np.float32)
        source = {"features": features}
        model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
        tensors = {"input_features": torch.from_numpy(features)}
    else:
        mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0]])
        source = {"token_ids": np.array([[5, 17, 99, 3], [4, 8, 0, 0]]), "attention_mask": mask}
        model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        tensors = {"input_ids": torch.from_numpy(source["token_ids"]),
                   "attention_mask": torch.from_numpy(mask)}  # fmt: skip
    inputs = {**source, "decoder_token_ids": written}
    assert [each.name for each in runner.inputs()] == list(inputs)
    with torch.no_grad():
        own = model(**tensors, decoder_input_ids=torch.from_numpy(written), use_cache=False).logits
    (logits,) = runner.run(inputs).values()
    np.testing.assert_allclose(logits, own.numpy(), rtol=1e-4, atol=1e-5)
    node = next(each.name for each in runner.nodes() if each.kind in ("relu", "gelu"))
    assert "encoder" in node
    _check(runner, inputs, node)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    environment = Environment(preload=describe("torch-eager").preload)
    with Pool(JOBS, workers=1, deadline_seconds=DEADLINE, environment=environment) as found:
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


def test_hidden_states_are_those_of_their_time_also_in_bfloat16(pool: Pool, tmp_path: Path) -> None:
    pool.submit(JOBS[3], str(tmp_path / "net")).result()


def test_a_language_model_is_a_program_of_layers(pool: Pool) -> None:
    pool.submit(JOBS[4], "math").result()


@pytest.mark.parametrize("family", ["bart", "t5", "whisper"])
def test_an_encoder_decoder_is_a_program_of_its_source_and_its_text(
    pool: Pool, tmp_path: Path, family: str
) -> None:
    pool.submit(JOBS[5], {"family": family, "folder": str(tmp_path / family)}).result()
