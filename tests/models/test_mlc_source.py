"""What is no source of mlc-llm, or no model of it, is refused in one line."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from tvm import relax

from tapml.models.huggingface import load_any
from tapml.models.mlc_source import names_of_older_tvm, open_mlc_source
from tapml_targets.errors import InputError
from tests.models.families import make_family
from tests.models.mlc_stand_in import STAND_IN


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of one layer."""
    return make_family(tmp_path_factory.mktemp("llama") / "m", "llama", num_hidden_layers=1)


def test_a_source_is_found_by_its_repository_or_its_package(tmp_path: Path) -> None:
    python = tmp_path / "python"
    shutil.copytree(STAND_IN / "mlc_llm", python / "mlc_llm")
    by_repository, by_package = (open_mlc_source(each) for each in (tmp_path, python / "mlc_llm"))
    assert by_repository == by_package
    assert by_repository.folder == python / "mlc_llm"
    assert sys.modules["mlc_llm"].__path__ == [str(python / "mlc_llm")]
    # Another source in the same process takes its place, with all its modules.
    assert open_mlc_source(STAND_IN).folder == STAND_IN / "mlc_llm"
    assert Path(str(sys.modules["mlc_llm.model.llama"].__file__)).is_relative_to(STAND_IN)


def test_the_digest_follows_the_text(tmp_path: Path) -> None:
    shutil.copytree(STAND_IN / "mlc_llm", tmp_path / "mlc_llm")
    before = open_mlc_source(tmp_path).digest
    with (tmp_path / "mlc_llm" / "model" / "llama.py").open("a") as file:
        file.write("# another line\n")
    assert open_mlc_source(tmp_path).digest != before


def test_names_of_another_tvm_are_there_only_while_they_are_needed() -> None:
    before = set(dir(relax))
    with names_of_older_tvm():
        assert relax.StringImm("a").value == relax.DataTypeImm("a").value == "a"
        assert relax.Constant
    assert set(dir(relax)) == before


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("absent", "no source of mlc-llm; expected its repository"),
        ("version", r"is version 0\.9, expected 0\.1\.dev0"),
        ("broken", r"cannot be imported: division by zero; expected a source of version"),
    ],
)
def test_what_is_no_source_is_refused(tmp_path: Path, change: str, expected: str) -> None:
    if change != "absent":
        shutil.copytree(STAND_IN / "mlc_llm", tmp_path / "mlc_llm")
    if change == "version":
        (tmp_path / "mlc_llm" / "libinfo.py").write_text('__version__ = "0.9"\n')
    if change == "broken":
        (tmp_path / "mlc_llm" / "model" / "recurrent.py").write_text("1 / 0\n")
    with pytest.raises(InputError, match=expected):
        open_mlc_source(tmp_path)


def test_a_model_type_that_the_source_lacks_is_named_with_the_nearest(
    folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="has no model type 'lama'; nearest: llama"):
        open_mlc_source(STAND_IN).definition("lama")
    qwen = make_family(tmp_path / "qwen2", "qwen2", num_hidden_layers=1, max_window_layers=0)
    with pytest.raises(InputError, match="has no model type 'qwen2'"):
        load_any(qwen, mlc_llm=str(STAND_IN))


def test_a_configuration_that_the_definition_refuses_is_one_line(
    folder: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(folder, tmp_path / "model")
    settings = json.loads((model / "config.json").read_text("utf-8"))
    settings["rope_parameters"] = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    (model / "config.json").write_text(json.dumps(settings), "utf-8")
    with pytest.raises(InputError, match=r"mlc-llm's llama refuses .*Unsupported RoPE scaling"):
        load_any(model, mlc_llm=str(STAND_IN))


def test_what_is_no_decoder_of_floats_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="takes float weights: leave --quantize out"):
        load_any(folder, mlc_llm=str(STAND_IN), quantize="int4")
    bert = make_family(tmp_path / "bert", "bert", num_hidden_layers=1)
    with pytest.raises(InputError, match="is no decoder with a cache"):
        load_any(bert, mlc_llm=str(STAND_IN))
    with pytest.raises(InputError, match="is no decoder with a cache"):
        load_any(make_family(tmp_path / "rwkv", "rwkv5"), mlc_llm=str(STAND_IN))
