"""A decoder without its torch module: what a session, a package and their runs know of a model.

Needs numpy and nothing else, so that a resumed session and a packaged model start on the base
install.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from tapml.models.inputs import MASKED, Array, entry_inputs
from tapml_targets.errors import InputError

_LARGEST: Final = 1 << 31
_LONGEST_NAME: Final = 4096
_MOST_END_TOKENS: Final = 1 << 16


@dataclass(frozen=True)
class StoredDecoder:
    """The sizes of a decoder-only language model with a fixed context, and what drives it.

    A :class:`tapml.execute.generate.Decoder`; a :class:`tapml.models.LoadedModel` has one.

    Attributes
    ----------
    name
        Zoo name or folder name.
    dtype
        ``float32`` or ``float16``: of weights, cache, mask and logits.
    context_length
        Rows T of the cache: prompt and generated tokens together.
    vocabulary
        Number of tokens.
    end_tokens
        Tokens that end a text.
    weights_hash
        SHA-256 of names, shapes, dtypes and bytes of the weights as loaded, hexadecimal.
    """

    name: str
    dtype: str
    context_length: int
    vocabulary: int
    end_tokens: frozenset[int]
    weights_hash: str

    def prepare_prefill(self, token_ids: Sequence[int], start: int = 0) -> dict[str, Array]:
        """Inputs of ``prefill`` in its order, without state; see :func:`entry_inputs`.

        Raises
        ------
        InputError
            If there are fewer than two tokens (one goes through decode), one is not in the
            vocabulary, or they do not fit into the context.
        """
        if len(token_ids) == 1:
            raise InputError(
                "prefill takes two tokens or more, got one: a single token goes through decode"
            )
        self.check_tokens(token_ids)
        return entry_inputs(token_ids, start, context_length=self.context_length, dtype=self.dtype)

    def prepare_decode(self, token_id: int, position: int) -> dict[str, Array]:
        """Inputs of ``decode`` in its order, without state.

        Raises
        ------
        InputError
            If the token is not in the vocabulary or the position not in the context.
        """
        self.check_tokens((token_id,))
        return entry_inputs(
            (token_id,), position, context_length=self.context_length, dtype=self.dtype
        )

    def check_tokens(self, token_ids: Sequence[int]) -> None:
        """Raise :class:`InputError` if a token is not in the vocabulary."""
        for token in token_ids:
            if not 0 <= token < self.vocabulary:
                raise InputError(
                    f"token {token} is not in the vocabulary of {self.name}: expected 0 to "
                    f"{self.vocabulary - 1}"
                )

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"end_tokens": sorted(self.end_tokens)}

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Read back what :meth:`to_json` gave, trusting nothing in it.

        Raises
        ------
        InputError
            If it is something else.
        """
        if not isinstance(data, Mapping):
            raise InputError(f"a stored model: expected an object, got {type(data).__name__}")
        end_tokens = data.get("end_tokens")
        if not isinstance(end_tokens, list) or len(end_tokens) > _MOST_END_TOKENS:
            raise InputError("a stored model: expected a list of numbers as its end_tokens")
        dtype = _text(data, "dtype")
        if dtype not in MASKED:
            raise InputError(
                f"a stored model: expected one of {', '.join(MASKED)} as its dtype, got {dtype!r}"
            )
        return cls(
            name=_text(data, "name"),
            dtype=dtype,
            context_length=_count(data.get("context_length"), "context_length", lowest=1),
            vocabulary=_count(data.get("vocabulary"), "vocabulary", lowest=1),
            end_tokens=frozenset(_count(each, "end_tokens") for each in end_tokens),
            weights_hash=_text(data, "weights_hash"),
        )


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME:
        raise InputError(f"a stored model: expected text as its {name}, got {str(value)[:40]!r}")
    return value


def _count(value: object, name: str, *, lowest: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value < _LARGEST:
        raise InputError(
            f"a stored model: expected a whole number from {lowest} on in its {name}, got "
            f"{str(value)[:40]!r}"
        )
    return value
