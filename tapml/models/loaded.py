"""A model in memory: its torch module, its sizes, its tokenizer, and its entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from tapml.models.entries import EntryModule, entry_module
from tapml.models.inputs import DECODE, PREFILL, Array, state_names
from tapml.models.stored import StoredDecoder
from tapml.models.text import TextCodec


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

    @cached_property
    def stored(self) -> StoredDecoder:
        """What drives the model, without its module."""
        return StoredDecoder(
            name=self.name,
            dtype=self.dtype,
            context_length=self.context_length,
            vocabulary=self.vocabulary,
            end_tokens=self.end_tokens,
            weights_hash=self.weights_hash,
        )

    def prepare_prefill(self, token_ids: Sequence[int], start: int = 0) -> dict[str, Array]:
        """Inputs of ``prefill``; see :meth:`StoredDecoder.prepare_prefill`."""
        return self.stored.prepare_prefill(token_ids, start)

    def prepare_decode(self, token_id: int, position: int) -> dict[str, Array]:
        """Inputs of ``decode``; see :meth:`StoredDecoder.prepare_decode`."""
        return self.stored.prepare_decode(token_id, position)

    def check_tokens(self, token_ids: Sequence[int]) -> None:
        """Raise :class:`InputError` if a token is not in the vocabulary."""
        self.stored.check_tokens(token_ids)
