"""Prompts: given by the user, or default ones for calibration."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tapml.models.resolve import zoo_folder
from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from tapml.models.loaded import LoadedModel

# General English, for models without their training text.
GENERAL: Final = (
    "The weather was clear that morning, so we",
    "Water boils at a lower temperature on a mountain because",
    "In the year 1903, two brothers",
    "A good test fails when",
    "She opened the letter and read:",
    "There are three reasons for this. First,",
)
_SYNTHETIC_LENGTHS: Final = (7, 12, 19, 5, 31, 9)
_PROMPT_WORDS: Final = 8
_VALIDATION_TEXT: Final = "validation.txt"
_TOKENS = re.compile(r"\s*\d{1,9}(?:[\s,]+\d{1,9})*\s*")


@dataclass(frozen=True)
class Prompt:
    """The tokens of a prompt, and its text if there is one."""

    token_ids: tuple[int, ...]
    text: str | None = None


def prompt_from_text(model: LoadedModel, text: str) -> Prompt:
    """Tokenize a prompt.

    Raises
    ------
    InputError
            If the model has no tokenizer, the text has no token, or it exceeds the context.
    """
    if model.tokenizer is None:
        raise InputError(
            f"{model.name} has no tokenizer, so it does not accept text: give token ids "
            f'(--tokens "1 2 3"), or put its {model.family.tokenizer} into the folder'
        )
    return _checked(model, Prompt(model.tokenizer.encode(text), text))


def prompt_from_tokens(model: LoadedModel, tokens: str | Sequence[int]) -> Prompt:
    """Take token ids as a prompt, as numbers or as text (``"1 2 3"``, ``"1,2,3"``).

    Raises
    ------
    InputError
        If the text is not a list of numbers, an id is not in the vocabulary, or the prompt is empty
        or exceeds the context.
    """
    if isinstance(tokens, str):
        if not _TOKENS.fullmatch(tokens):
            raise InputError(
                f"tokens {tokens[:60]!r}: expected integers separated by spaces or commas, "
                'like "1 2 3"'
            )
        tokens = [int(number) for number in re.findall(r"\d+", tokens)]
    ids = tuple(int(token) for token in tokens)
    text = None if model.tokenizer is None else model.tokenizer.decode(ids)
    return _checked(model, Prompt(ids, text))


def calibration_prompts(model: LoadedModel, count: int = 4) -> tuple[Prompt, ...]:
    """Default prompts, at least one.

    Beginnings of held-out paragraphs for a zoo model, general English for others, synthetic tokens
    (always the same) for a model without a tokenizer. Each leaves half of the context free.
    """
    if count < 1:
        raise InputError(f"{count} prompts: expected at least 1")
    room = model.context_length // 2
    if model.tokenizer is None:
        random = np.random.default_rng(0)
        lengths = [min(_SYNTHETIC_LENGTHS[i % len(_SYNTHETIC_LENGTHS)], room) for i in range(count)]
        return tuple(
            Prompt(tuple(int(token) for token in random.integers(0, model.vocabulary, length)))
            for length in lengths
        )
    texts = _texts(model)
    chosen = [texts[index % len(texts)] for index in range(count)]
    return tuple(
        _checked(model, Prompt(model.tokenizer.encode(text)[:room], text)) for text in chosen
    )


def beginnings(paragraphs: Iterable[str]) -> tuple[str, ...]:
    """Distinct first words of the paragraphs that start with a capital letter."""
    starts = (" ".join(text.split()[:_PROMPT_WORDS]) for text in paragraphs if text[:1].isupper())
    return tuple(dict.fromkeys(starts))


def _texts(model: LoadedModel) -> tuple[str, ...]:
    """Held-out beginnings if the model comes from the zoo, else general English."""
    if zoo_folder(model.name) != model.source:
        return GENERAL
    held_out = (model.source / _VALIDATION_TEXT).read_text(encoding="utf-8")
    return beginnings(held_out.splitlines())


def _checked(model: LoadedModel, prompt: Prompt) -> Prompt:
    length = len(prompt.token_ids)
    if length == 0:
        raise InputError("the prompt has no token: give a prompt that is not empty")
    if length > model.context_length:
        longest = int(model.config.max_position_embeddings)
        remedy = (
            f"shorten it, or raise the context (--context, at most {longest})"
            if longest > model.context_length
            else "shorten it"
        )
        raise InputError(
            f"the prompt has {length} tokens, but the context of {model.name} is "
            f"{model.context_length}: {remedy}"
        )
    model.check_tokens(prompt.token_ids)
    return prompt
