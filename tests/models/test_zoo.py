from __future__ import annotations

import hashlib
import json
import math
import pydoc_data.topics
from typing import Any

import pytest
import torch

from scripts import train_zoo, zoo_corpus
from tapml.models import LoadedModel, load_model, resolve_model, zoo_names
from tapml.models.prompts import beginnings
from tests.models.running import EagerRunner

FOLDER = resolve_model("pydoc-llama")


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model("pydoc-llama")


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return dict(json.loads((FOLDER / "training.json").read_text()))


def held_out() -> list[str]:
    return (FOLDER / "validation.txt").read_text(encoding="utf-8").splitlines()


def test_the_zoo_is_small() -> None:
    for name in zoo_names():
        files = [path for path in resolve_model(name).rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in files) <= 6_000_000
        assert {path.suffix for path in files} <= {".json", ".md", ".safetensors", ".txt"}


def test_the_model_has_grouped_queries_and_unaligned_sizes(model: LoadedModel) -> None:
    assert model.config.architectures == ["LlamaForCausalLM"]
    assert model.config.num_attention_heads // model.cache[0].heads == 2
    assert model.config.intermediate_size % 32
    assert model.context_length == 256


def test_the_shipped_weights_are_the_trained_ones(
    model: LoadedModel, record: dict[str, Any]
) -> None:
    assert train_zoo.weights_sha256(model.module) == record["weights_sha256"]


def test_the_shipped_model_has_the_recorded_validation_loss(
    model: LoadedModel, record: dict[str, Any]
) -> None:
    assert model.tokenizer is not None
    stream: list[int] = []
    for text in held_out():
        stream += [*model.tokenizer.encode(text), *model.end_tokens]
    assert len(stream) == record["validation_tokens"]
    tokens = torch.tensor(stream).numpy()
    loss = train_zoo.validation_loss(model.module, tokens, model.context_length)
    model.module.eval()
    assert loss == pytest.approx(record["validation_loss"], abs=1e-3)
    # Far below guessing: a trained model.
    assert loss < 0.65 * math.log(model.vocabulary)


def test_the_settings_are_those_the_script_trains_with(record: dict[str, Any]) -> None:
    assert vars(train_zoo.Settings()) == record["settings"]
    assert record["corpus"]["sha256"] == zoo_corpus.CORPUS_SHA256


def test_greedy_words_are_words_of_the_corpus(model: LoadedModel) -> None:
    known = set((FOLDER / "words.txt").read_text(encoding="utf-8").split())
    prompts = beginnings(held_out())[:16]
    assert len(prompts) == 16
    assert model.tokenizer is not None
    found: list[str] = []
    for prompt in prompts:
        tokens = list(model.tokenizer.encode(prompt))
        runner = EagerRunner(model)
        logits = runner.run(tokens)
        while len(tokens) < 80 and tokens[-1] not in model.end_tokens:
            tokens.append(int(logits[0, -1].argmax()))
            logits = runner.run(tokens[-1:])
        # The prompt's last word may have been continued; the last word may be unfinished.
        found += zoo_corpus.words(model.tokenizer.decode(tokens))[
            len(zoo_corpus.words(prompt)) - 1 : -1
        ]
    assert len(found) > 300
    assert len(set(found)) > 100
    assert sum(word in known for word in found) >= 0.98 * len(found)


def test_the_word_list_is_the_corpus_or_the_script_names_the_python_it_needs() -> None:
    if hashlib.sha256(zoo_corpus.corpus_text().encode()).hexdigest() != zoo_corpus.CORPUS_SHA256:
        with pytest.raises(SystemExit, match=zoo_corpus.CORPUS_PYTHON):
            zoo_corpus.check_corpus()
        return
    corpus = zoo_corpus.read_corpus()
    assert list(corpus.validation) == held_out()
    words = sorted(set(zoo_corpus.words("\n".join(corpus.training))))
    assert words == (FOLDER / "words.txt").read_text(encoding="utf-8").split()


def test_held_out_paragraphs_are_not_in_the_training_text() -> None:
    training = "\n".join(zoo_corpus.read_corpus().training).splitlines()
    assert len(training) == len(set(training))
    assert not set(training) & set(zoo_corpus.read_corpus().validation)


def test_another_corpus_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pydoc_data.topics, "topics", {"only": "one topic"})
    with pytest.raises(SystemExit) as stop:
        zoo_corpus.check_corpus()
    assert zoo_corpus.CORPUS_PYTHON in str(stop.value)


def test_training_twice_gives_the_same_weights() -> None:
    settings = train_zoo.Settings(steps=3, batch=2, context=64)
    corpus = zoo_corpus.read_corpus()
    threads = torch.get_num_threads()
    try:
        records = [train_zoo.run(settings, corpus)[2] for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)
    assert records[0]["weights_sha256"] == records[1]["weights_sha256"]
    assert records[0]["validation_loss"] == records[1]["validation_loss"]


def test_the_card_states_loss_corpus_and_licence(record: dict[str, Any]) -> None:
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"{record['validation_loss']:.4f}" in card
    assert record["corpus"]["sha256"] in card
    assert "PSF License" in card
