"""Decoders, encoders, encoder-decoders and plain modules: from their folders to packages.

Each test on one platform; tests/offload/exhaustive/test_workloads.py has every platform, and the
checks that are no tests here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSeq2SeqLM,
    WhisperForConditionalGeneration,
)

import tapml as tml
from tapml.models.huggingface import load_any, load_model
from tapml.models.loaded import LoadedModule
from tapml.own_operators import KERNELS
from tests.conftest import RequireDevice
from tests.models.families import make_family
from tests.offload.commands import run_here
from tests.offload.sessions import read_report
from tests.offload.shipping import result_of, shipped
from tests.offload.warm_cache import warm_cache


def gpt_neox_writes_what_transformers_generates(
    tmp_path: Path, require_device: RequireDevice, platform: str
) -> None:
    folder = make_family(tmp_path / "neox", "gpt_neox")
    package = shipped(folder, tmp_path, require_device, platform, "--new-tokens", "2")
    prompt = [5, 17, 99, 3, 42, 8]
    found = result_of(package, tmp_path / "cache", "--tokens", " ".join(map(str, prompt)))
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    generated = model.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False)
    assert found["tokens"] == generated[0, len(prompt) :].tolist()


def rwkv_writes_what_its_class_writes(
    tmp_path: Path, require_device: RequireDevice, platform: str
) -> None:
    folder = make_family(tmp_path / "rwkv", "rwkv6", num_hidden_layers=1)
    by_hand = ("--kernels", "own-operators")
    package = shipped(folder, tmp_path, require_device, platform, "--new-tokens", "2", *by_hand)
    # The second prompt of one token begins with an empty state again.
    for prompt in ([5, 17, 99, 3], [42]):
        tokens = " ".join(map(str, prompt))
        found = result_of(package, tmp_path / "cache", "--tokens", tokens, "--max-new-tokens", "8")
        ids = torch.tensor([prompt])
        with torch.no_grad():
            for _ in range(8):
                logits = load_model(folder).module(ids).logits[0, -1]
                ids = torch.cat([ids, logits.argmax()[None, None]], dim=1)
        assert found["tokens"] == ids[0, len(prompt) :].tolist()


@pytest.mark.parametrize("platform", ["opencl"])
def test_a_recurrence_written_by_hand_moves_alone(
    tmp_path: Path, require_device: RequireDevice, platform: str
) -> None:
    """Section IV-E of the paper: what is special about a model does not wait for the rest."""
    folder = make_family(tmp_path / "rwkv", "rwkv5", num_hidden_layers=1)
    device = f"{platform}:{min(each.index for each in require_device(platform))}"
    arguments = ("--model", folder, "--device", device, "--session", tmp_path / "session")
    chosen = ("--only", "wkv5*", "--kernels", "own-operators", "--tokens", "5 17 99 3")
    cache = warm_cache(tmp_path / "cache")
    ended = run_here("offload", *arguments, *chosen, "--new-tokens", "2", cache=cache)
    assert ended.exit_code == 0, ended.errors
    report = read_report(tmp_path / "session")
    assert report["outcome"]["status"] == "pass"
    moved = {each["name"]: each for each in report["operators"] if each["state"] == "moved"}
    # Any number of tokens, and one.
    assert set(moved) == {"wkv5", "wkv5_2"}
    for each in moved.values():
        assert each["written"] == str(KERNELS / "wkv5" / platform)
        assert each["tests"]["passed"] == each["tests"]["total"] > 0


@pytest.mark.parametrize("platform", ["webgpu"])
def test_bert_gives_the_vectors_of_transformers_for_a_padded_batch(
    tmp_path: Path, require_device: RequireDevice, platform: str
) -> None:
    folder = make_family(tmp_path / "bert", "bert")
    package = shipped(folder, tmp_path, require_device, platform)
    sentences = ("3 4 5 6 7", "9 8")
    given = [word for each in sentences for word in ("--tokens", each)]
    rows = np.array(result_of(package, tmp_path / "cache", *given)["rows"])
    ids = torch.tensor([[3, 4, 5, 6, 7], [9, 8, 0, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    with torch.no_grad():
        states_ = AutoModel.from_pretrained(folder).eval()(input_ids=ids, attention_mask=mask)[0]
    first, second = states_[0].numpy(), states_[1, :2].numpy()
    expected = np.concatenate([first.mean(0)[None], second.mean(0)[None], first, second])
    assert np.abs(rows - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("platform", ["opencl"])
def test_the_trained_cnn_gives_the_classes_of_torch(
    tmp_path: Path, require_device: RequireDevice, platform: str
) -> None:
    package = shipped("digits-cnn", tmp_path, require_device, platform)
    model = load_any("digits-cnn")
    assert isinstance(model, LoadedModule)
    for (images,), text in model.samples[-2:]:
        np.save(tmp_path / "x.npy", images)
        found = result_of(package, tmp_path / "cache", "--input", tmp_path / "x.npy")
        rows = np.array(found["rows"])
        with torch.no_grad():
            expected = model.module(torch.from_numpy(images)).numpy()
        assert np.abs(rows - expected).max() < 1e-5 * np.abs(expected).max()
        assert str(found["result"]).split() == [str(each) for each in expected.argmax(axis=1)]
        right = np.array(text.split(": ")[1].split()) == np.array(str(found["result"]).split())
        assert right.mean() >= 0.75


@pytest.mark.parametrize("platform", ["opencl"])
def test_t5_gives_the_logits_of_transformers(
    tmp_path: Path, require_device: RequireDevice, platform: str
) -> None:
    folder = make_family(tmp_path / "t5", "t5", num_layers=1, num_decoder_layers=2)
    package = shipped(folder, tmp_path, require_device, platform, "--new-tokens", "3")
    source = [5, 17, 99, 3]
    found = result_of(package, tmp_path / "cache", "--tokens", " ".join(map(str, source)))
    tokens = [int(each) for each in str(found["result"]).split()]
    three = ("--tokens", " ".join(map(str, source)), "--max-new-tokens", "3")
    counted = result_of(package, tmp_path / "cache", *three)["result"]
    assert str(counted).split() == str(found["result"]).split()[:3]
    with tml.load_package(package) as moved:
        logits = moved.outputs(source)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    written = torch.tensor([[0, *tokens[:-1]]])
    with torch.no_grad():
        own = model(torch.tensor([source]), decoder_input_ids=written, use_cache=False).logits[0]
    assert tokens == own.argmax(dim=1).tolist()
    assert np.abs(logits - own.numpy()).max() < 1e-5 * own.abs().max()


def vit_gives_the_classes_of_transformers(
    tmp_path: Path, require_device: RequireDevice, platform: str
) -> None:
    folder = make_family(tmp_path / "vit", "vit")
    package = shipped(folder, tmp_path, require_device, platform)
    images = np.random.default_rng(3).standard_normal((4, 3, 24, 24)).astype(np.float32)
    np.save(tmp_path / "x.npy", images)
    found = result_of(package, tmp_path / "cache", "--input", tmp_path / "x.npy")
    with torch.no_grad():
        model = AutoModelForImageClassification.from_pretrained(folder).eval()
        own = model(torch.from_numpy(images)).logits.numpy()
    assert np.abs(np.array(found["rows"]) - own).max() < 1e-5 * np.abs(own).max()
    assert found["result"] == " ".join(f"LABEL_{each}" for each in own.argmax(axis=1))


def distilbert_gives_the_vectors_of_transformers(
    tmp_path: Path, require_device: RequireDevice, platform: str
) -> None:
    folder = make_family(tmp_path / "distilbert", "distilbert")
    package = shipped(folder, tmp_path, require_device, platform)
    rows = result_of(package, tmp_path / "cache", "--tokens", "3 4 5", "--tokens", "9")["rows"]
    ids, mask = torch.tensor([[3, 4, 5], [9, 0, 0]]), torch.tensor([[1, 1, 1], [1, 0, 0]])
    with torch.no_grad():
        model = AutoModel.from_pretrained(folder).eval()
        own = model(input_ids=ids, attention_mask=mask)[0].numpy()
    expected = np.concatenate([own[0].mean(0)[None], own[1, :1], own[0], own[1, :1]])
    assert np.abs(np.array(rows) - expected).max() < 1e-5 * np.abs(expected).max()


def whisper_gives_the_tokens_of_transformers(
    tmp_path: Path, require_device: RequireDevice, platform: str
) -> None:
    folder = make_family(tmp_path / "whisper", "whisper")
    package = shipped(folder, tmp_path, require_device, platform, "--new-tokens", "3")
    features = np.random.default_rng(3).standard_normal((8, 40)).astype(np.float32)
    with tml.load_package(package) as moved:
        logits, tokens = moved.outputs(features), moved.call(features)["tokens"]
    written = torch.tensor([[3, *tokens[:-1].tolist()]])
    with torch.no_grad():
        model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
        given = torch.from_numpy(features)[None]
        own = model(given, decoder_input_ids=written, use_cache=False).logits[0].numpy()
    assert tokens.tolist() == own.argmax(axis=1).tolist()
    assert np.abs(logits - own).max() < 1e-5 * np.abs(own).max()
