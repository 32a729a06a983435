"""A model in memory: its torch module, its sizes, its tokenizer, and its entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from tapml.models.entries import EntryModule, entry_module
from tapml.models.inputs import DECODE, PREFILL, Array, entry_inputs, state_names
from tapml.models.text import TextCodec
from tapml_targets.errors import InputError


@dataclass(frozen=True)
class LoadedModel:
    """A decoder-only language model with a fixed context.

    Attributes
    ----------
    name
        Zoo name or folder name.
    config
        The ``transformers`` configuration.
    tokenizer
        None where the folder has no tokenizer files.
    module
        The ``transformers`` causal language model, eager attention, no gradients.
    dtype
        ``float32`` or ``float16``: of weights, cache, mask and logits.
    context_length
        Rows T of the cache: prompt and generated tokens together.
    weights_hash
        SHA-256 of names, shapes, dtypes and bytes of the weights as loaded, hexadecimal.
    source
        The folder.
    end_tokens
        Tokens that end a text.
    notes
        What a user should know, a sentence each (no tokenizer, bfloat16 held as float32).
    """

    name: str
    config: Any
    tokenizer: TextCodec | None
    module: nn.Module
    dtype: str
    context_length: int
    weights_hash: str
    source: Path
    end_tokens: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return int(self.config.num_hidden_layers)

    @property
    def kv_heads(self) -> int:
        """Key and value heads per layer."""
        return int(self.config.num_key_value_heads)

    @property
    def head_size(self) -> int:
        """Elements of one head."""
        size = getattr(self.config, "head_dim", None)
        return int(size or self.config.hidden_size // self.config.num_attention_heads)

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return int(self.config.vocab_size)

    def entry_modules(self) -> tuple[EntryModule, ...]:
        """``prefill`` and ``decode`` over the same parameters, ready to be exported."""
        return tuple(
            entry_module(
                name,
                self.module,
                layers=self.layers,
                kv_heads=self.kv_heads,
                head_size=self.head_size,
                context_length=self.context_length,
                dtype=self.dtype,
            )
            for name in (PREFILL, DECODE)
        )

    def empty_state(self) -> dict[str, Array]:
        """An empty cache: zeros ``[1, KV heads, T, head size]`` per state name."""
        shape = (1, self.kv_heads, self.context_length, self.head_size)
        return {name: np.zeros(shape, dtype=self.dtype) for name in state_names(self.layers)}

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
