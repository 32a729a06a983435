from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapml.models.checkpoint import inspect_checkpoint, read_header
from tapml_targets.errors import InputError
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
    file = whole / "damaged.safetensors"
    file.write_bytes(bytes(damaged[:cut]))
    try:
        tensors = read_header(file)
    except InputError as error:
        assert "damaged.safetensors" in str(error)
    else:
        assert cut is None or cut == len(original)
        assert len(tensors) <= len(read_header(whole / "model.safetensors"))
    finally:
        file.unlink()
