"""What the model answers, piece by piece, and how the API writes it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tapml.package.target_model import TargetModel
from tapml.serving.requests import Wish


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


@dataclass
class Answer:
    """An answer while it is generated: iterating gives its text, a piece for each token.

    `finish` is ``stop`` after an end token or a stop text, ``length`` otherwise.
    """

    model: TargetModel
    wish: Wish
    prompt_tokens: int = 0
    tokens: int = 0
    finish: str = "length"
    identity: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def __iter__(self) -> Iterator[str]:
        """Generate.

        Raises
        ------
        InputError
            If the prompt cannot be used.
        DeviceLostError
            If the device is gone.
        """
        ids = self.wish.token_ids(self.model)
        self.prompt_tokens = len(ids)
        count = self.wish.max_new_tokens or self.model.context_length
        steps = self.model.generate_tokens(ids, max_new_tokens=count, sampling=self.wish.sampling)
        stream, stop = self.model.codec.stream(ids), StopText(self.wish.stops)
        for token in steps:
            self.tokens += 1
            if token in self.model.end_tokens:
                self.finish = "stop"
            yield stop.push(stream.push(token))
            if stop.reached:
                self.finish = "stop"
                return
        yield stop.push(stream.finish())
        if stop.reached:
            self.finish = "stop"
        else:
            yield stop.finish()

    def whole(self, text: str) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        said: dict[str, Any] = {"text": text}
        if self.wish.is_chat:
            said = {"message": {"role": "assistant", "content": text}}
        return self._body("chat.completion", [self._choice(said, self.finish)], self._usage())

    def chunks(self, text: str, *, first: bool) -> Iterator[dict[str, Any]]:
        """Events for a piece of text."""
        if self.wish.is_chat and first:
            yield self._chunk({"delta": {"role": "assistant", "content": ""}}, None)
        if text:
            said: dict[str, Any] = {"delta": {"content": text}}
            yield self._chunk(said if self.wish.is_chat else {"text": text}, None)

    def last_chunks(self) -> Iterator[dict[str, Any]]:
        """The event that says why it ended, and the one with the count if it was asked for."""
        yield self._chunk({"delta": {}} if self.wish.is_chat else {"text": ""}, self.finish)
        if self.wish.usage:
            yield self._body("chat.completion.chunk", [], self._usage())

    def _chunk(self, said: dict[str, Any], finish: str | None) -> dict[str, Any]:
        return self._body("chat.completion.chunk", [self._choice(said, finish)], None)

    @staticmethod
    def _choice(said: dict[str, Any], finish: str | None) -> dict[str, Any]:
        return {"index": 0, **said, "logprobs": None, "finish_reason": finish}

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
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.tokens,
            "total_tokens": self.prompt_tokens + self.tokens,
        }
