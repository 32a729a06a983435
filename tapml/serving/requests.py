"""What a client asks for: bodies of ``/v1/completions`` and ``/v1/chat/completions``, checked."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from tapml.execute.sampling import Sampling
from tapml.package.target_model import TargetModel
from tapml_targets.errors import InputError

MAX_BODY_BYTES: Final = 4 << 20
DEFAULT_TOKENS: Final = 16
"""New tokens of a completion that names no number, as in OpenAI's API."""

_Stop: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
_Text: TypeAlias = Annotated[str, Meta(max_length=MAX_BODY_BYTES)]
_Token: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 31)]
_Count: TypeAlias = Annotated[int, Meta(ge=1, lt=1 << 31)]
_MOST_TEXTS: Final = 16
_MOST_PROBABLE: Final = 20
_MOST_BIASES: Final = 1024
_DIGITS: Final = 9
_Texts: TypeAlias = Annotated[int, Meta(ge=1, le=_MOST_TEXTS)]
_Prompts: TypeAlias = Annotated[
    list[_Text | Annotated[list[_Token], Meta(min_length=1)]],
    Meta(min_length=1, max_length=_MOST_TEXTS),
]
# Fields that would change the answer, with the values that do not: others are refused, because an
# answer without them would be another one than asked for.
# The longest token of any tokenizer that is read here has fewer.
_CHARACTERS_OF_A_TOKEN: Final = 256
_NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "best_of": (1,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "response_format": ({"type": "text"},),
}


class _Part(msgspec.Struct):
    type: str
    text: _Text = ""


class _Message(msgspec.Struct):
    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: _Text | list[_Part]

    def plain(self) -> dict[str, str]:
        if isinstance(self.content, str):
            return {"role": self.role, "content": self.content}
        if other := next((each.type for each in self.content if each.type != "text"), None):
            raise InputError(f"messages: the model takes text alone, got a part of type {other!r}")
        return {"role": self.role, "content": "".join(each.text for each in self.content)}


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _Body(msgspec.Struct):
    model: str | None = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    n: _Texts | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[str, float], Meta(max_length=_MOST_BIASES)] | None = None
    stop: _Stop | Annotated[list[_Stop], Meta(max_length=4)] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


class _CompletionBody(_Body, kw_only=True):
    prompt: _Text | Annotated[list[Any], Meta(min_length=1)]
    logprobs: bool | Annotated[int, Meta(ge=0, le=_MOST_PROBABLE)] | None = None
    echo: bool | None = None

    def prompts(self) -> tuple[str | tuple[int, ...], ...]:
        """A text, token ids, or several of one of them."""
        if isinstance(self.prompt, str):
            return (self.prompt,)
        with suppress(msgspec.ValidationError):
            return (tuple(msgspec.convert(self.prompt, list[_Token])),)
        with suppress(msgspec.ValidationError):
            several: list[Any] = msgspec.convert(self.prompt, _Prompts)
            return tuple(each if isinstance(each, str) else tuple(each) for each in several)
        raise InputError(
            "prompt: expected a text, token ids, or a list of texts or of lists of token ids, at "
            f"most {_MOST_TEXTS}"
        )


class _ChatBody(_Body, kw_only=True):
    messages: Annotated[list[_Message], Meta(min_length=1, max_length=1024)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=_MOST_PROBABLE)] | None = None


@dataclass(frozen=True)
class Wish:
    """A request that was understood.

    `prompt` is text or token ids, or `messages` is a conversation; `more` are further prompts.
    `max_new_tokens` is None for what the context leaves. `usage` asks for the count of tokens at
    the end of a stream, `count` for so many texts, `echo` for the prompt before the text, and
    `probable` for the probability of each token and of so many most probable ones, unless None.
    """

    model: str | None
    prompt: str | tuple[int, ...] | None
    messages: tuple[dict[str, str], ...]
    max_new_tokens: int | None
    sampling: Sampling
    stops: tuple[str, ...]
    stream: bool
    usage: bool
    more: tuple[str | tuple[int, ...], ...] = ()
    count: int = 1
    echo: bool = False
    probable: int | None = None

    def each(self) -> tuple[Wish, ...]:
        """A wish for each prompt."""
        return (self, *(replace(self, prompt=prompt) for prompt in self.more))

    @property
    def is_chat(self) -> bool:
        """Whether it is a conversation."""
        return self.prompt is None

    def token_ids(self, model: TargetModel) -> tuple[int, ...]:
        """The prompt's tokens. Raises InputError if the model has no chat template or jinja2."""
        if self.prompt is None:
            return model.chat(self.messages)
        if not isinstance(self.prompt, str):
            return self.prompt
        # A tokenizer lets nothing else run meanwhile: it does not begin what cannot fit.
        most = _CHARACTERS_OF_A_TOKEN * model.context_length
        if len(self.prompt) > most:
            raise InputError(
                f"the prompt has {len(self.prompt)} characters, the context of "
                f"{model.context_length} tokens takes at most {most}: shorten the prompt"
            )
        return model.encode(self.prompt)


def read_wish(content: bytes, *, chat: bool) -> Wish:
    """Read a body.

    Raises
    ------
    InputError
        If it is no JSON object of the API, a value is out of range, or it asks for something that
        this server does not do; the message names the field.
    """
    kind: type[_CompletionBody | _ChatBody] = _ChatBody if chat else _CompletionBody
    try:
        raw = msgspec.json.decode(content)
        body = msgspec.convert(raw, kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(f"the request cannot be used: {error}") from error
    for name, neutral in _NEUTRAL.items():
        value = raw.get(name)
        if value is not None and value not in neutral:
            shown = msgspec.json.encode(value).decode()[:60]
            raise InputError(f"{name}: this server does not do that, got {shown}; leave it out")
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    count = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    prompts: tuple[str | tuple[int, ...] | None, ...] = (None,)
    messages: tuple[dict[str, str], ...] = ()
    if isinstance(body, _CompletionBody):
        prompts = body.prompts()
        count = count or DEFAULT_TOKENS
        asked = body.logprobs
        probable = None if asked is None or asked is False else int(asked)
        echo = bool(body.echo)
        if echo and probable is not None:
            raise InputError("echo: the prompt's tokens have no logprobs here; leave one out")
    else:
        messages = tuple(each.plain() for each in body.messages)
        probable = (body.top_logprobs or 0) if body.logprobs else None
        echo = False
        if body.top_logprobs and not body.logprobs:
            raise InputError("top_logprobs: expected logprobs true beside it")
    texts = (body.n or 1) * len(prompts)
    if texts > _MOST_TEXTS:
        raise InputError(f"n: {texts} texts in all, expected at most {_MOST_TEXTS}")
    options = body.stream_options or _StreamOptions()
    return Wish(
        model=body.model,
        prompt=prompts[0],
        messages=messages,
        max_new_tokens=count,
        sampling=Sampling(
            0.0 if body.temperature is None else body.temperature,
            1.0 if body.top_p is None else body.top_p,
            body.seed,
            max(body.top_k or 0, 0),
            body.presence_penalty or 0.0,
            body.frequency_penalty or 0.0,
            _bias(body.logit_bias or {}),
        ),
        stops=stops,
        stream=bool(body.stream),
        usage=options.include_usage,
        more=tuple(each for each in prompts[1:] if each is not None),
        count=body.n or 1,
        echo=echo,
        probable=probable,
    )


def _bias(given: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    """Token ids, which JSON writes as texts, with what is added to their logits."""
    for token in given:
        if not (token.isascii() and token.isdigit() and len(token) <= _DIGITS):
            raise InputError(f"logit_bias: {token[:40]!r} is no token id")
    return tuple((int(token), value) for token, value in given.items())
