from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tapml.models import resolve_model, zoo_names
from tapml_targets.errors import InputError


def test_a_zoo_name_gives_the_shipped_folder() -> None:
    folder = resolve_model("pydoc-llama")
    assert (folder / "config.json").is_file()
    assert folder.name == "pydoc-llama"


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert resolve_model(tmp_path) == tmp_path.resolve()


def test_an_unknown_name_lists_the_zoo() -> None:
    with pytest.raises(InputError) as error:
        resolve_model("no-such-model")
    assert "no-such-model" in str(error.value)
    assert all(name in str(error.value) for name in zoo_names())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("model.safetensors", "is a file.*; give its folder, "),
        ("net.ort", "is a file.*give the .onnx file"),
        ("net.keras", "is a file.*export it as ONNX"),
        ("net.pth", "is a file.*tapml.from_torch"),
        ("notes.txt", "is a file: expected a model folder"),
    ],
)
def test_a_file_is_refused_with_what_to_do(name: str, said: str, tmp_path: Path) -> None:
    for each in (name, "config.json"):
        (tmp_path / each).write_bytes(b"")
    with pytest.raises(InputError, match=said):
        resolve_model(tmp_path / name)


def test_a_name_cannot_leave_the_zoo() -> None:
    with pytest.raises(InputError):
        resolve_model("pydoc-llama/../../nothing")


def test_resolving_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, tapml.models as m; m.resolve_model('pydoc-llama'); m.entry_for(3); "
        "print([n for n in ('torch', 'transformers', 'tvm') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
