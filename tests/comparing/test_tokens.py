"""Language models: what is measured of their tokens, and texts as data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tapml.backends.runner import Array
from tapml.comparing.data import make_data, read_data
from tapml.comparing.texts import read_tokens
from tapml.comparing.tokens import without_padding
from tapml.comparing.verdicts import Thresholds, Truth, judge
from tapml.models.resolve import zoo_folder
from tapml_targets.errors import InputError

TOKENS = {
    "token_ids": np.array([[5, 6, 7], [5, 6, 0]]),
    "attention_mask": np.array([[1, 1, 1], [1, 1, 0]]),
}


def _logits() -> Array:
    return np.random.default_rng(0).normal(size=(2, 3, 11)).astype(np.float32)


def _judge(first: Array, second: Array) -> tuple[str, dict[str, Any]]:
    one, other = (without_padding(each, TOKENS["attention_mask"]) for each in (first, second))
    verdict = judge({"l": one}, {"l": other}, Truth("none"), Thresholds(), TOKENS)
    return verdict.status, verdict.metrics | {"reason": verdict.reason, "worst": verdict.worst}


def test_equal_distributions_agree_though_their_logits_are_shifted_alike() -> None:
    logits = _logits()
    status, found = _judge(logits, logits + np.float32(1e-6))
    assert (status, found["top1"]["agreement"]) == ("agree", 1.0)
    assert found["KL"]["largest"] < 1e-9 and "parting" not in found


def test_divergence_is_kullback_and_leiblers() -> None:
    first, second = _logits(), _logits()
    second[0, 1] *= 0.5
    _, found = _judge(first, second)
    p, q = (np.exp(each[0, 1].astype(float)) for each in (first, second))
    p, q = p / p.sum(), q / q.sum()
    assert found["KL"]["largest"] == pytest.approx(np.sum(p * np.log(p / q)))
    assert found["KL"]["triggering"] == 1 and found["worst"] == 0


def test_the_first_token_that_differs_is_named_with_its_margins() -> None:
    first, second = _logits(), _logits()
    best = int(first[1, 1].argmax())
    second[1, 1, (best + 1) % 11] = first[1, 1, best] + 2
    first[0, 2], second[0, 2] = first[0, 2] * 0, second[0, 2] * 0
    second[0, 2, 3] = 1e-7  # A tie that rounding broke is no finding.
    status, found = _judge(first, second)
    assert status == "inconsistent"
    assert found["parting"]["instance"] == 1 and found["parting"]["position"] == 1
    assert found["parting"]["tokens"] == [best, (best + 1) % 11]
    assert found["parting"]["margins"][1] == pytest.approx(2, abs=1e-5)
    assert found["top1"] == {
        "agreement": pytest.approx((2 / 3 + 1 / 2) / 2),
        "parted": 2,
        "ties": 1,
    }
    assert "first token that differs" in found["reason"]


def test_padding_means_nothing() -> None:
    first, second = _logits(), _logits()
    second[1, 2] = 0
    status, found = _judge(first, second)
    assert (status, found["KL"]["largest"], found["top1"]["agreement"]) == ("agree", 0, 1)


def test_texts_are_the_models_own_tokens(tmp_path: Path) -> None:
    model = zoo_folder("pydoc-llama")
    assert model is not None
    (tmp_path / "texts.txt").write_text("Return the number of items.\n\nA file object\n")
    data = read_data(tmp_path / "texts.txt").in_tokens(model)
    ids, mask = data.arrays["token_ids"], data.arrays["attention_mask"]
    assert len(data) == 2 and ids.shape == mask.shape and ids.dtype == np.int64
    assert mask.sum(axis=1).max() == ids.shape[1] and (ids[mask == 0] == 0).all()
    # A folder has a text a file, beside the names of its classes.
    (tmp_path / "classes.txt").write_text("cat\n")
    assert read_data(tmp_path).texts == ("Return the number of items.\n\nA file object",)


def test_texts_that_no_model_takes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(InputError, match="holds no text"):
        read_data(tmp_path / "empty.txt")
    (tmp_path / "latin.txt").write_bytes(b"\xe9t\xe9")
    with pytest.raises(InputError, match="is no text in UTF-8"):
        read_data(tmp_path / "latin.txt")
    (tmp_path / "text.txt").write_text("A text")
    with pytest.raises(InputError, match=r"model\.onnx has no tokenizer"):
        read_data(tmp_path / "text.txt").in_tokens(tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"token_ids": [[1, 2, 99_999]]}, r"has \d+ tokens, so expected 0 to \d+"),
        ({"token_ids": [[1, -2, 3]]}, "goes from -2 to 3"),
        ({"token_ids": [[1, 2, 3]], "attention_mask": [[1, 1]]}, r"expected token_ids's, \(1, 3\)"),
        ({"token_ids": [[1, 2, 3]], "attention_mask": [[0, 0, 0]]}, "one or more, and 0 elsewhere"),
    ],
)
def test_tokens_that_the_model_does_not_have_are_refused(
    wrong: dict[str, Any], expected: str
) -> None:
    model = zoo_folder("pydoc-llama")
    assert model is not None
    with pytest.raises(InputError, match=expected):
        make_data(wrong).in_tokens(model)


def test_tokens_of_equal_length_need_no_mask(tmp_path: Path) -> None:
    model = zoo_folder("pydoc-llama")
    assert model is not None
    given = make_data({"token_ids": [[1, 2, 3], [4, 5, 6]]})
    assert given.in_tokens(model).arrays["attention_mask"].tolist() == [[1, 1, 1]] * 2
    assert given.in_tokens(tmp_path / "model.onnx").arrays.keys() == {"token_ids"}


def test_an_encoder_decoder_reads_what_follows_a_tab_or_the_text_again(tmp_path: Path) -> None:
    model = zoo_folder("pydoc-llama")
    assert model is not None
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    config = {"is_encoder_decoder": True, "decoder_start_token_id": 7}
    (folder / "config.json").write_text(json.dumps(config))
    (tmp_path / "texts.txt").write_text("Return a list.\tOpen a file\nReturn a list.\n")
    data = read_data(tmp_path / "texts.txt").in_tokens(folder)
    source, written = data.arrays["token_ids"], data.arrays["decoder_token_ids"]
    assert (source[0] == source[1]).all() and (written[:, 0] == 7).all()
    ids, mask = read_tokens(data.arrays)
    assert ids is written and mask is not None
    second = written[1][mask[1] > 0]
    assert second[1:].tolist() == source[1][data.arrays["attention_mask"][1] > 0].tolist()
    assert written[0][mask[0] > 0].tolist() != second.tolist()
