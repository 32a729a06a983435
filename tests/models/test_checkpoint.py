from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapml.models import load_model
from tapml.models.checkpoint import inspect_checkpoint
from tapml_targets.errors import InputError
from tests.models.families import make_family
from tests.models.folders import make_folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("whole") / "model", num_hidden_layers=1)


@pytest.mark.parametrize(
    ("kind", "natural"),
    [("float32", "float32"), ("bfloat16", "float32"), ("float16", "float16")],
)
def test_the_natural_dtype_loses_nothing(tmp_path: Path, kind: str, natural: str) -> None:
    checkpoint = inspect_checkpoint(make_folder(tmp_path / "m", kind, num_hidden_layers=1))
    assert checkpoint.natural_dtype == natural


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m", "sharded")
    checkpoint = inspect_checkpoint(folder)
    assert len({tensor.file for tensor in checkpoint.tensors.values()}) > 1
    assert checkpoint.tensors["model.norm.weight"].shape == (72,)
    assert checkpoint.tensors["lm_head.weight"].shape == (131, 72)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_damaged_header_is_an_input_error_or_harmless(whole: Path, data: st.DataObject) -> None:
    original = (whole / "model.safetensors").read_bytes()
    header = 8 + int.from_bytes(original[:8], "little")
    damaged = bytearray(original)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, header - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(original))))
    file = whole / "model.safetensors"
    tensors = inspect_checkpoint(whole).tensors
    file.write_bytes(bytes(damaged[:cut]))
    try:
        found = inspect_checkpoint(whole).tensors
    except InputError as error:
        assert str(whole) in str(error)
    else:
        assert cut is None or cut == len(original)
        assert len(found) <= len(tensors)
    finally:
        file.write_bytes(original)


def test_a_bloom_of_the_first_files_is_read(tmp_path: Path) -> None:
    """Those files say ``n_embed`` and ``num_attention_heads``."""
    folder = make_family(tmp_path / "model", "bloom")
    config = json.loads((folder / "config.json").read_text())
    config["n_embed"] = config.pop("hidden_size")
    config["num_attention_heads"] = config.pop("n_head")
    (folder / "config.json").write_text(json.dumps(config))
    model = load_model(folder)
    assert [each.heads for each in model.cache] == [6, 6]
    assert model.config.hidden_size == 72


def linked(folder: Path) -> Path:
    (folder / "model.safetensors").rename(folder / "elsewhere")
    (folder / "model.safetensors").symlink_to("../../blobs/gone")
    return folder


def pointed(folder: Path) -> Path:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 123\n"
    (folder / "model.safetensors").write_text(text)
    return folder


def unlisted(folder: Path) -> Path:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    return folder


def exported(folder: Path) -> Path:
    (folder / "model.safetensors").unlink()
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"")
    return folder


def adapter_of(folder: Path) -> Path:
    beside("adapter_config.json")(folder)
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    return folder


def of_timm(folder: Path) -> Path:
    config = {"architecture": "resnet18", "num_classes": 10, "pretrained_cfg": {}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def of_sentences(folder: Path) -> Path:
    beside("modules.json")(beside("0_Transformer/config.json")(folder))
    return folder


def beside(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "config.json").unlink(missing_ok=True)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
        return folder

    return make


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (linked, "model.safetensors is a link to ../../blobs/gone, which is not there"),
        (pointed, "is a pointer of Git LFS and not the file: fetch it with git lfs pull"),
        (exported, r"has no weights.*give the file, .*/onnx/model\.onnx$"),
        (unlisted, "fetch model.safetensors.index.json, which lists the parts"),
        (beside("snapshots/abc/config.json"), "give the model in it, .*/snapshots/abc$"),
        (beside("small.gguf"), r"give the file, .*/small\.gguf$"),
        (beside("model.onnx"), r"give the file, .*/model\.onnx$"),
        (beside("model_index.json"), "a pipeline of several models"),
        (beside("saved_model.pb"), "export it as ONNX"),
        (beside("adapter_config.json"), "an adapter's: merge it into its base model and"),
        (adapter_of, "an adapter's: merge it into its base model org/base and save that"),
        (of_timm, r"is of timm: .*timm.create_model\('resnet18'\).*tapml.from_torch"),
        (of_sentences, "of sentence-transformers: give the model in it, .*/0_Transformer$"),
    ],
)
def test_what_a_folder_is_instead_is_said(
    whole: Path, tmp_path: Path, make: Callable[[Path], Path], said: str
) -> None:
    folder = make(shutil.copytree(whole, tmp_path / "model"))
    with pytest.raises(InputError, match=said):
        inspect_checkpoint(folder)
