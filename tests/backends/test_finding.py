"""Which backends there are."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tapml.backends.finding import backends, describe, find_backend
from tapml.backends.torch_compile import kept_code
from tapml.comparing.run import choose
from tapml_targets.errors import InputError


@pytest.mark.parametrize("name", sorted(backends()))
def test_every_folder_describes_a_backend_and_has_a_runner(name: str) -> None:
    description = describe(name)
    assert description.title
    assert description.packages
    assert all(
        re.fullmatch(r"\.[a-z0-9]+|([a-z]+/)?[a-z]+\.(safetensors|json)", each)
        for each in description.formats
    )
    assert find_spec(f"{backends()[name]}.runner") is not None
    assert find_backend(name).missing() == [], "the tests' environment has every backend"


def test_a_variant_is_chosen_by_name_and_has_a_default() -> None:
    assert find_backend("onnxruntime").variant == "all"
    assert find_backend("onnxruntime:disabled").variant == "disabled"


@pytest.mark.parametrize("device", ["cpu", "opencl:1", "tcp://board:9190", "tracker:pixel"])
def test_a_device_is_a_backend_under_its_own_name(device: str) -> None:
    found = find_backend(device)
    assert (found.text, found.variant, found.package) == (
        device, device, "tapml.backends.tapml_device",
    )  # fmt: skip


def test_an_unknown_backend_or_variant_names_those_there_are() -> None:
    with pytest.raises(InputError, match=r"no backend is named 'caffe'; there are keras-jax"):
        find_backend("caffe")
    with pytest.raises(InputError, match=r"'jax'; did you mean keras-jax; there are keras-jax"):
        find_backend("jax")
    with pytest.raises(InputError, match="no variant 'fast'; there are onnxruntime:all"):
        find_backend("onnxruntime:fast")
    with pytest.raises(InputError, match="no backend is named"):
        find_backend("../onnxruntime")
    with pytest.raises(InputError, match="cpu is a device, which has no version"):
        find_backend("cpu@2")


def test_all_are_those_that_read_the_model_without_devices() -> None:
    found = [each.text for each in choose(Path("m.onnx"), ["all"])]
    assert found == ["onnx-reference", "onnxruntime", "openvino", "tvm"]
    assert [each.text for each in choose(Path("m.onnx"), ["tvm", "all", "cpu"])] == [
        "tvm", "onnx-reference", "onnxruntime", "openvino", "cpu",
    ]  # fmt: skip
    with pytest.raises(InputError, match=r"that is installed reads old\.h5; load it with Keras"):
        choose(Path("old.h5"), ["all"], least=0)
    with pytest.raises(InputError, match=r"got tvm for m\.onnx; it is read by onnx-reference"):
        choose(Path("m.onnx"), ["tvm"])


def test_compiled_code_is_kept_where_nobody_else_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAPML_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    (folder,) = kept_code().values()
    assert Path(folder).is_relative_to(tmp_path) and Path(folder).stat().st_mode & 0o077 == 0
    Path(folder).chmod(0o777)
    assert kept_code() == {}
