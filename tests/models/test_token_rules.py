"""What a folder says of the tokens that are written, beside transformers' processors of logits."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig
from transformers.generation import (
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from tapml.models.stored import StoredEncoderDecoder, read_stored
from tapml.models.token_rules import TokenRules
from tapml.workloads.encoder_decoder import EncoderDecoderWorkload

START, END, TOKENS, STEPS = 3, 2, 12, 30
STORED = StoredEncoderDecoder(
    name="t",
    dtype="float32",
    context_length=64,
    vocabulary=TOKENS,
    start_tokens=(START,),
    end_tokens=frozenset({END}),
    padding=1,
    features=None,
    weights_hash="ab",
)
SETTINGS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "nothing": ({}, []),
    "the first and the last token": (
        {"forced_bos_token_id": 5, "forced_eos_token_id": END},
        [ForcedBOSTokenLogitsProcessor(5), ForcedEOSTokenLogitsProcessor(STEPS + 1, END)],
    ),
    "tokens, and those that none begins with": (
        {"suppress_tokens": [END, 7, 8], "begin_suppress_tokens": list(range(9))},
        [
            SuppressTokensLogitsProcessor([END, 7, 8]),
            SuppressTokensAtBeginLogitsProcessor(list(range(9)), 1),
        ],
    ),
    "a beginning behind a forced token": (
        {"forced_bos_token_id": 5, "begin_suppress_tokens": list(range(11))},
        [
            ForcedBOSTokenLogitsProcessor(5),
            SuppressTokensAtBeginLogitsProcessor(list(range(11)), 2),
        ],
    ),
    "words": (
        {"bad_words_ids": [[END], [11], [4, 5], [9, 10, 9]]},
        [NoBadWordsLogitsProcessor([[END], [11], [4, 5], [9, 10, 9]], [END])],
    ),
    "no pair twice": ({"no_repeat_ngram_size": 2}, [NoRepeatNGramLogitsProcessor(2)]),
    "no token twice": (
        {"no_repeat_ngram_size": 1, "min_length": 6},
        [NoRepeatNGramLogitsProcessor(1), MinLengthLogitsProcessor(6, END)],
    ),
    "a penalty": ({"repetition_penalty": 1.7}, [RepetitionPenaltyLogitsProcessor(1.7)]),
    "no short text": (
        {"min_length": 14, "suppress_tokens": [*range(2), *range(5, 9)]},
        [
            MinLengthLogitsProcessor(14, END),
            SuppressTokensLogitsProcessor([*range(2), *range(5, 9)]),
        ],
    ),
}


def written(processors: LogitsProcessorList, logits: np.ndarray[Any, Any]) -> list[int]:
    """As ``generate`` of transformers chooses, one text without sampling."""
    tokens = [START]
    for row in logits:
        scores = processors(torch.tensor([tokens]), torch.from_numpy(row[None].copy()))
        tokens.append(int(scores.argmax()))
        if tokens[-1] == END:
            break
    return tokens[1:]


@pytest.mark.parametrize("setting", SETTINGS)
def test_tokens_are_those_of_transformers(setting: str) -> None:
    said, processors = SETTINGS[setting]
    rules = TokenRules.of(GenerationConfig(**said), start=1, vocabulary=TOKENS, ends={END})
    stored = replace(STORED, rules=rules)
    assert read_stored(json.loads(json.dumps(stored.to_json()))) == stored
    workload = EncoderDecoderWorkload(stored)
    differs = False
    for seed in range(8):
        logits = np.random.default_rng(seed).standard_normal((STEPS, TOKENS)).astype(np.float32)
        own = written(LogitsProcessorList(processors), logits)
        found = workload.by_name([logits[: len(own)]])["tokens"].tolist()
        assert found == own
        differs |= found != written(LogitsProcessorList(), logits)
    assert differs == bool(said)


def test_tokens_that_the_vocabulary_lacks_say_nothing() -> None:
    said = GenerationConfig(
        forced_bos_token_id=TOKENS, suppress_tokens=[-1, TOKENS + 1], begin_suppress_tokens=[50256]
    )
    assert TokenRules.of(said, start=1, vocabulary=TOKENS, ends={END}) == TokenRules()
    assert TokenRules.of(None, start=1, vocabulary=TOKENS, ends={END}) == TokenRules()
