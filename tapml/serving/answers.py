"""What the model answers, piece by piece, and how the API writes it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tapml.execute.generate import GeneratedToken
from tapml.execute.sampling import LARGEST_SEED
from tapml.package.target_model import TargetModel
from tapml.serving.requests import Wish

# What a tokenizer writes for bytes that are no whole character.
_PART_OF_ONE: Final = "\N{REPLACEMENT CHARACTER}"


class StopText:
    """Text up to the first stop; what may be the beginning of one is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.reached = False

    def push(self, piece: str) -> str:
        """The text that is certain now, possibly empty."""
        text = self._held + piece
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.reached, self._held = True, ""
            return text[: min(places)]
        held = max((_begun(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """What was held back and was none."""
        text, self._held = self._held, ""
        return text


def _begun(text: str, stop: str) -> int:
    """How many characters at the end of a text are a stop's beginning."""
    longest = min(len(stop) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


_LEAST: Final = -9999.0
"""What OpenAI's API has for a token that cannot come."""


@dataclass(frozen=True)
class _Probable:
    """A token with the logarithm of its probability, and the most probable ones there."""

    token: int
    logarithm: float
    best: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, token: int, logits: npt.NDArray[Any], count: int) -> _Probable:
        exact = logits.astype(np.float64)
        exact -= exact.max()
        exact -= np.log(np.exp(exact).sum())
        # JSON has no infinity and nothing that is no number.
        exact = np.nan_to_num(np.maximum(exact, _LEAST), nan=_LEAST)
        order = np.argsort(-exact, kind="stable")[:count].tolist()
        return cls(token, float(exact[token]), tuple((each, float(exact[each])) for each in order))


@dataclass
class Choice:
    """One text while it is generated: iterating gives it, a piece for each token.

    `finish` is ``stop`` after an end token or a stop text, ``length`` otherwise.
    """

    model: TargetModel
    wish: Wish
    index: int
    prompt_tokens: int = 0
    tokens: int = 0
    finish: str = "length"
    _probable: list[_Probable] = field(default_factory=list)
    """Of the tokens since they were last told."""
    _told: int = 0

    def __iter__(self) -> Iterator[str]:
        """Generate.

        Raises
        ------
        InputError
            If the prompt cannot be used.
        DeviceLostError
            If the device is gone.
        """
        wish, model = self.wish, self.model
        ids, steps = self.begin()
        stream, stop = model.codec.stream(ids), StopText(wish.stops)
        if wish.echo:
            said = wish.prompt if isinstance(wish.prompt, str) else model.codec.decode(ids)
            self._told = len(said)
            yield said
        for step in steps:
            self.tokens += 1
            if wish.probable is not None:
                self._probable.append(_Probable.of(step.token, step.logits, wish.probable))
            if step.token in model.end_tokens:
                self.finish = "stop"
            yield stop.push(stream.push(step.token))
            if stop.reached:
                self.finish = "stop"
                return
        yield stop.push(stream.finish())
        if stop.reached:
            self.finish = "stop"
        else:
            yield stop.finish()

    def begin(self) -> tuple[tuple[int, ...], Iterator[GeneratedToken]]:
        """The prompt's tokens, and those that follow. Raises InputError if it cannot be used."""
        wish, model = self.wish, self.model
        ids = wish.token_ids(model)
        self.prompt_tokens = len(ids)
        count = wish.max_new_tokens or model.context_length
        return ids, model.generate_steps(ids, max_new_tokens=count, sampling=wish.sampling)

    def told(self, said: dict[str, Any], finish: str | None) -> dict[str, Any]:
        """How the API writes what was said, with the probabilities of the tokens since then."""
        probable, self._probable = self._probable, []
        written = None if self.wish.probable is None or not probable else self._written(probable)
        return {"index": self.index, **said, "logprobs": written, "finish_reason": finish}

    def _written(self, probable: Sequence[_Probable]) -> dict[str, Any]:
        if self.wish.is_chat:
            content = [
                {
                    **self._entry(each.token, each.logarithm),
                    "top_logprobs": [self._entry(*best) for best in each.best],
                }
                for each in probable
            ]
            return {"content": content}
        texts = [self._text(each.token) for each in probable]
        offsets = [self._told + sum(map(len, texts[:place])) for place in range(len(texts))]
        self._told += sum(map(len, texts))
        return {
            "tokens": texts,
            "token_logprobs": [each.logarithm for each in probable],
            "top_logprobs": [
                {self._text(token): value for token, value in each.best} for each in probable
            ],
            "text_offset": offsets,
        }

    def _text(self, token: int) -> str:
        return self.model.codec.decode([token])

    def _entry(self, token: int, logarithm: float) -> dict[str, Any]:
        text = self._text(token)
        # Of a part of a character the tokenizer does not tell the bytes.
        known = None if _PART_OF_ONE in text else list(text.encode())
        return {"token": text, "logprob": logarithm, "bytes": known}


@dataclass
class Answer:
    """The answer to a request: a text for each prompt, or several."""

    model: TargetModel
    wish: Wish
    identity: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))
    choices: list[Choice] = field(init=False)

    def __post_init__(self) -> None:
        wishes = [
            replace(each, sampling=self._seeded(number))
            for each in self.wish.each()
            for number in range(self.wish.count)
        ]
        self.choices = [Choice(self.model, each, index) for index, each in enumerate(wishes)]
        if len(self.choices) > 1 or self.wish.echo:
            # What is wrong with a later one is told before the first is written.
            for choice in self.choices[:: self.wish.count]:
                choice.begin()

    def _seeded(self, number: int) -> Any:
        sampling = self.wish.sampling
        seed = sampling.seed
        return replace(sampling, seed=None if seed is None else (seed + number) & LARGEST_SEED)

    def whole(self, texts: Sequence[str]) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        choices = []
        for choice, text in zip(self.choices, texts, strict=True):
            said: dict[str, Any] = {"text": text}
            if self.wish.is_chat:
                said = {"message": {"role": "assistant", "content": text}}
            choices.append(choice.told(said, choice.finish))
        return self._body("chat.completion", choices, self._usage())

    def chunks(self, choice: Choice, text: str, *, first: bool) -> Iterator[dict[str, Any]]:
        """Events for a piece of text."""
        if self.wish.is_chat and first:
            role = {"delta": {"role": "assistant", "content": ""}}
            yield self._chunk({"index": choice.index, **role, "finish_reason": None})
        if text:
            said: dict[str, Any] = {"delta": {"content": text}}
            yield self._chunk(choice.told(said if self.wish.is_chat else {"text": text}, None))

    def end(self, choice: Choice) -> dict[str, Any]:
        """The event that says why a text ended."""
        said: dict[str, Any] = {"delta": {}} if self.wish.is_chat else {"text": ""}
        return self._chunk(choice.told(said, choice.finish))

    def last_chunks(self) -> Iterator[dict[str, Any]]:
        """The event with the count of tokens, if it was asked for."""
        if self.wish.usage:
            yield self._body("chat.completion.chunk", [], self._usage())

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        return self._body("chat.completion.chunk", [choice], None)

    def _body(
        self, chat_object: str, choices: list[dict[str, Any]], usage: dict[str, int] | None
    ) -> dict[str, Any]:
        chat = self.wish.is_chat
        return {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{self.identity}",
            "object": chat_object if chat else "text_completion",
            "created": self.created,
            "model": self.model.name,
            "choices": choices,
            "usage": usage,
        }

    def _usage(self) -> dict[str, int]:
        # Several texts of one prompt count it once, as OpenAI's API does.
        prompt = sum(each.prompt_tokens for each in self.choices[:: self.wish.count])
        written = sum(each.tokens for each in self.choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
        }
