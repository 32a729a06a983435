from __future__ import annotations

from pathlib import Path

import pytest

from tapml.models import (
    LoadedModel,
    calibration_prompts,
    load_model,
    prompt_from_text,
    prompt_from_tokens,
)
from tapml.models.prompts import GENERAL
from tapml_targets.errors import InputError
from tests.models.folders import make_folder


@pytest.fixture(scope="module")
def zoo() -> LoadedModel:
    return load_model("pydoc-llama")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(make_folder(tmp_path_factory.mktemp("prompts") / "bare"))


def test_zoo_prompts_come_from_held_out_text(zoo: LoadedModel) -> None:
    held_out = (zoo.source / "validation.txt").read_text(encoding="utf-8")
    prompts = calibration_prompts(zoo, 6)
    assert len({prompt.token_ids for prompt in prompts}) == 6
    for prompt in prompts:
        assert prompt.text is not None
        assert prompt.text in held_out


def test_other_models_get_general_english(tmp_path: Path) -> None:
    model = load_model(make_folder(tmp_path / "model", tokenizer=True))
    assert [prompt.text for prompt in calibration_prompts(model, 2)] == list(GENERAL[:2])


def test_a_model_without_tokenizer_gets_the_same_made_up_tokens_and_says_so(
    bare: LoadedModel,
) -> None:
    prompts = calibration_prompts(bare, 5)
    assert prompts == calibration_prompts(bare, 5)
    assert any("no tokenizer" in note for note in bare.notes)
    for prompt in prompts:
        assert prompt.text is None
        assert 2 <= len(prompt.token_ids) <= bare.context_length // 2
        bare.check_tokens(prompt.token_ids)


def test_text_for_a_model_without_tokenizer_is_refused(bare: LoadedModel) -> None:
    with pytest.raises(InputError, match="--tokens"):
        prompt_from_text(bare, "hello")


@pytest.mark.parametrize("text", ["1 2 3", "1,2,3", " 1, 2 ,3 "])
def test_tokens_can_be_typed(bare: LoadedModel, text: str) -> None:
    assert prompt_from_tokens(bare, text).token_ids == (1, 2, 3)


@pytest.mark.parametrize("text", ["", "one", "1;2", "-1", "1 2.5"])
def test_what_is_no_list_of_tokens_is_refused(bare: LoadedModel, text: str) -> None:
    with pytest.raises(InputError, match="expected integers"):
        prompt_from_tokens(bare, text)


def test_a_token_outside_the_vocabulary_is_refused(bare: LoadedModel) -> None:
    with pytest.raises(InputError, match=r"131 is not in the vocabulary.*0 to 130"):
        prompt_from_tokens(bare, [3, 131])


def test_a_prompt_longer_than_the_context_names_both_lengths(zoo: LoadedModel) -> None:
    text = "The value of the attribute is the object. " * 60
    assert zoo.tokenizer is not None
    length = len(zoo.tokenizer.encode(text))
    with pytest.raises(InputError, match=rf"has {length} tokens, .* is 256"):
        prompt_from_text(zoo, text)


def test_an_empty_prompt_of_tokens_is_refused(bare: LoadedModel) -> None:
    with pytest.raises(InputError, match="no token"):
        prompt_from_tokens(bare, [])


def test_a_prompt_of_one_token_is_accepted(zoo: LoadedModel) -> None:
    assert len(prompt_from_text(zoo, "").token_ids) == 1
