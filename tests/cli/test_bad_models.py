"""A model that cannot be moved is one line with exit code 2, whatever is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.test_bad_input import said_in_one_line
from tests.models.folders import make_damaged_folder, make_folder
from tests.models.gguf import written
from tests.offload.commands import run_here


def damaged(name: str) -> Callable[[Path], Path]:
    return lambda folder: make_damaged_folder(folder, name)


def configured(**changes: object) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        config = make_folder(folder, num_hidden_layers=1) / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), **changes}))
        return folder

    return make


def cut_gguf(folder: Path) -> Path:
    folder.mkdir()
    file = folder / "small.gguf"
    written.write_llama(file, "Q8_0")
    file.write_bytes(file.read_bytes()[:-1000])
    return file


_REMOTE = {
    "architectures": ["CuriousForCausalLM"],
    "model_type": "curious",
    "auto_map": {"AutoModelForCausalLM": "modeling_curious.CuriousForCausalLM"},
}
_SERIES = {"architectures": ["PatchTSTModel"], "model_type": "patchtst"}
_FALSE = {"quant_method": "gptq", "bits": 4, "group_size": 32}
BAD: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "an unknown architecture": (
        configured(architectures=["LlammaForCausalLM"]),
        ("unknown architecture 'LlammaForCausalLM'", "LlamaForCausalLM"),
    ),
    "weights of another class": (configured(**_SERIES), ("25 missing weights", "input_embedding")),
    "weights of another shape": (damaged("wrong_shape"), ("up_proj", "(100, 72)", "(4, 4)")),
    "safetensors cut short": (damaged("truncated"), ("model.safetensors", "not a valid")),
    "GGUF cut short": (cut_gguf, ("small.gguf", "fetch it again")),
    "a quantization that is not read": (
        configured(quantization_config={"quant_method": "bitsandbytes"}),
        ("bitsandbytes", "dequantize()"),
    ),
    "a quantization that the weights do not have": (
        configured(quantization_config=_FALSE),
        ("qweight",),
    ),
    "no weights": (damaged("no_weights"), ("no weights", "safetensors")),
    "remote code only": (configured(**_REMOTE), ("CuriousForCausalLM", "never runs")),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Empty at first; the devices are measured once."""
    return tmp_path_factory.mktemp("bad-models") / "cache"


@pytest.mark.parametrize("kind", BAD)
def test_a_model_that_cannot_be_taken(tmp_path: Path, cache: Path, kind: str) -> None:
    make, words = BAD[kind]
    session = tmp_path / "session"
    ended = run_here(
        *("offload", "--model", make(tmp_path / "model"), "--target", "opencl"),
        *("--session", session, "--quiet"),
        cache=cache,
    )
    line = said_in_one_line(ended)
    assert all(word in line for word in words), line
    assert not (session / "plan.msgpack").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--tokens", "1 2 131"), ("131", "vocabulary")),
        (("--context", "65"), ("65", "8 to 64")),
    ],
)
def test_what_a_model_has_no_room_for(
    tmp_path: Path, cache: Path, arguments: tuple[str, str], words: tuple[str, ...]
) -> None:
    model = make_folder(tmp_path / "model", num_hidden_layers=1)
    ended = run_here(
        *("offload", "--model", model, "--target", "opencl", "--quiet", *arguments),
        *("--session", tmp_path / "session"),
        cache=cache,
    )
    line = said_in_one_line(ended)
    assert all(word in line for word in words), line
