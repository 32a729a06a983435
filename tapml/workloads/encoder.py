"""Encoders of text: batches of sentences with padding, compared by vectors or classes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from tapml.execute.arrays import Array
from tapml.models.prompts import GENERAL
from tapml.models.stored import ENCODE
from tapml.workloads.one_call import OneCall
from tapml_targets.errors import InputError

# Of synthetic sentences: the longest fills its row, the others have padding.
_SHARES: Final = (0.6, 1.0, 0.3, 0.8)
_TOKENS: Final = re.compile(r"\s*\d{1,9}(?:[\s,]+\d{1,9})*\s*")


@dataclass(frozen=True)
class Batch:
    """Sentences that are encoded together, and their texts if they have them."""

    sentences: Annotated[
        tuple[Annotated[tuple[int, ...], msgspec.Meta(min_length=1)], ...],
        msgspec.Meta(min_length=1, max_length=1 << 16),
    ]
    texts: tuple[str, ...] = ()

    @property
    def text(self) -> str | None:
        """The texts in one line."""
        return " | ".join(self.texts) or None

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens of all sentences."""
        return tuple(token for sentence in self.sentences for token in sentence)


class EncoderWorkload(OneCall[Batch]):
    """One padded batch for each call."""

    entry = ENCODE

    def cases(
        self, loaded: Any, texts: Sequence[str], tokens: Sequence[str], count: int
    ) -> tuple[Batch, ...]:
        """Batches of the given sentences; else of general English, or of synthetic tokens."""
        stored = self._stored
        if texts and loaded.tokenizer is None:
            raise InputError(
                f"{loaded.name} has no tokenizer, so it does not accept text: give token ids "
                '(--tokens "1 2 3"), or put its tokenizer.json into the folder'
            )
        sentences: list[tuple[tuple[int, ...], str | None]]
        sentences = [(loaded.tokenizer.encode(text), text) for text in texts]
        sentences += [(numbers(each), None) for each in tokens]
        if not sentences and loaded.tokenizer is not None:
            chosen = [GENERAL[index % len(GENERAL)] for index in range(count * stored.batch)]
            room = stored.context_length
            sentences = [(loaded.tokenizer.encode(text)[:room], text) for text in chosen]
        if not sentences:
            random = np.random.default_rng(0)
            sentences = [
                (tuple(int(token) for token in random.integers(1, stored.vocabulary, length)), None)
                for length in _lengths(stored.context_length, count * stored.batch)
            ]
        batches = []
        for start in range(0, len(sentences), stored.batch):
            some = sentences[start : start + stored.batch]
            written = tuple(text for _, text in some if text is not None)
            batches.append(Batch(tuple(ids for ids, _ in some), written))
        return tuple(batches)

    def as_case(self, given: Any) -> Batch:
        """A batch, from sentences of token ids as well."""
        if isinstance(given, Batch):
            return given
        return Batch(tuple(tuple(int(token) for token in sentence) for sentence in given))

    def inputs(self, case: Batch) -> dict[str, Array]:
        """Token ids and mask."""
        made: dict[str, Array] = self._stored.prepare(case.sentences)
        return made

    def rows(self, case: Batch, outputs: Sequence[Array]) -> Array:
        """The mean vector of each sentence, then those of all tokens; or each one's classes."""
        output = outputs[0]
        count = len(case.sentences)
        if self._stored.measure == "classes":
            return output[:count]
        parts = [output[row, : len(each)] for row, each in enumerate(case.sentences)]
        means = [part.mean(axis=0, keepdims=True) for part in parts]
        rows: Array = np.concatenate([*means, *parts])
        return rows

    def texts(self, case: Batch) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Each sentence."""
        return tuple(zip(case.texts, case.sentences, strict=False))

    def argument(self, *, takes_text: bool) -> str:
        """A sentence."""
        return '--prompt "A sentence"' if takes_text else '--tokens "1 2 3"'

    def from_arguments(
        self, texts: Sequence[str], tokens: Sequence[str], array: Any, codec: Any
    ) -> Batch:
        """A batch of what the command line has."""
        if array is not None or not (texts or tokens):
            raise InputError(
                f"{self._stored.name} takes sentences: give --prompt or --tokens, "
                f"up to {self._stored.batch} times"
            )
        encoded = tuple(tuple(codec().encode(text)) for text in texts)
        return Batch((*encoded, *(numbers(each) for each in tokens)), tuple(texts))

    def pack_case(self, case: Batch) -> dict[str, Any]:
        """Sentences and text."""
        packed: dict[str, Any] = msgspec.to_builtins(case)
        return packed

    def unpack_case(self, data: Mapping[str, Any]) -> Batch:
        """See :meth:`Workload.unpack_case`."""
        try:
            case = msgspec.convert(dict(data), Batch)
        except msgspec.ValidationError as error:
            raise InputError(f"a stored batch: {error}") from error
        self.inputs(case)
        return case


def numbers(text: str) -> tuple[int, ...]:
    """Token ids of what ``--tokens`` has; raises :class:`InputError` for anything else."""
    if not _TOKENS.fullmatch(text):
        raise InputError(
            f"tokens {text[:60]!r}: expected integers separated by spaces or commas, like "
            '"1 2 3"; each --tokens is a sentence'
        )
    return tuple(int(number) for number in re.findall(r"\d+", text))


def _lengths(room: int, count: int) -> list[int]:
    return [max(1, int(room * _SHARES[index % len(_SHARES)])) for index in range(count)]


WORKLOAD = EncoderWorkload
