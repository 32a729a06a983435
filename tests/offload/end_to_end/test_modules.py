"""A torch module of the user's own and an ONNX file: moved, packaged and run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

import tapml as tml
from tapml.models.file_names import PROGRAM
from tests.conftest import RequireDevice
from tests.importing.test_recording import Several
from tests.models.onnx_files import make_onnx
from tests.offload.commands import run_here
from tests.offload.shipping import result_of, shipped


@pytest.mark.parametrize("platform", ["opencl"])
def test_a_torch_module_moves_and_goes_on_without_its_code(
    tmp_path: Path, require_device: RequireDevice, platform: str
) -> None:
    require_device(platform)
    torch.manual_seed(0)
    module = Several()
    model = tml.from_torch(
        module,
        [torch.rand(3, 4), torch.ones(3)],
        dynamic=[{0: "batch"}, {0: "batch"}],
        samples=[[torch.rand(5, 4), torch.ones(5)]],
    )
    session = tml.OffloadSession.begin(tmp_path / "session", model, platform)
    ended = session.run()
    assert ended.status == "pass", ended.text
    assert (Path(session.settings.model) / PROGRAM).is_file()
    # The command resumes what Python began, and moves nothing again.
    again = run_here("offload", "--session", session.folder, cache=tmp_path / "cache")
    assert again.exit_code == 0, again.errors
    made = run_here("package", session.folder, "-o", tmp_path / "p", cache=tmp_path / "cache")
    assert made.exit_code == 0, made.errors
    # A batch that no test had.
    x, bias = torch.rand(6, 4), torch.rand(6)
    np.savez(tmp_path / "inputs.npz", x=x.numpy(), bias=bias.numpy())
    found = result_of(tmp_path / "p", tmp_path / "cache", "--input", tmp_path / "inputs.npz")
    own = module.eval()(x, bias)
    outputs = found["outputs"]
    assert isinstance(outputs, dict)
    assert np.allclose(outputs["halves"], own["halves"].detach().numpy(), rtol=1e-5, atol=1e-5)
    assert outputs["more.1"] == own["more"][1].tolist()


@pytest.mark.parametrize("platform", ["opencl"])
def test_an_onnx_file_gives_what_onnxruntime_gives(
    tmp_path: Path, require_device: RequireDevice, platform: str
) -> None:
    path = make_onnx(tmp_path / "net.onnx", outside="net.data")
    images = np.random.default_rng(5).standard_normal((2, 2, 8, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", images)
    given = ("--input", str(tmp_path / "x.npy"))
    package = shipped(path, tmp_path, require_device, platform, *given)
    found = result_of(package, tmp_path / "cache", *given)
    expected = onnxruntime.InferenceSession(path).run(None, {"x": images})
    outputs = found["outputs"]
    assert isinstance(outputs, dict)
    assert np.abs(np.array(outputs["classes"]) - expected[0]).max() < 1e-6
    assert outputs["best"] == expected[1].tolist()
