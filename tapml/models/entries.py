"""The two ways into a decoder-only model, as torch modules that can be exported.

Why not transformers' own cache: ``DynamicCache`` does not export to Relax, and positions computed
inside the model mix 32 and 64-bit integers. So everything the model would compute from "where are
we" comes in as an input, and the cache is a fixed number of rows that each run takes and returns:

* ``token_ids``      int32 ``[1, S]``
* ``position_ids``   int32 ``[1, S]``
* ``cache_rows``     int32 ``[T]``: for every cache row the index of the new token that is stored
  there, or -1 where the row stays as it is
* ``attention_mask`` float ``[1, 1, S, T]``: 0 where a token may look, a large negative number else
* per layer ``cache.<i>.key`` and ``cache.<i>.value``, float ``[1, KV heads, T, head size]``

and out come ``logits`` ``[1, S, vocabulary]`` (every position, so that teacher forcing needs one
run) and the caches in the same order. ``prefill`` has a dynamic S of at least 2, ``decode`` has
S = 1: a length that may be 1 or more does not get through the compiler's fusion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from tapml.models.inputs import (
    DECODE,
    MODEL_INPUTS,
    SHORTEST_PREFILL,
    entry_inputs,
    state_names,
)

SYMBOL: Final = "S"
_EXAMPLE_LENGTH = 5


@dataclass(frozen=True)
class StateSpecification:
    """One cache tensor: where it enters, where its new value leaves.

    Attributes
    ----------
    name
        ``cache.<layer>.key`` or ``cache.<layer>.value``; the same in every entry.
    input_index, output_index
        Positions in the entry's inputs and outputs.
    shape
        ``(1, KV heads, context length, head size)``.
    dtype
        The model's dtype.
    """

    name: str
    input_index: int
    output_index: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class EntryModule:
    """One entry, ready for ``torch.export.export``.

    Attributes
    ----------
    name
        ``prefill`` or ``decode``.
    module
        The torch module; all entries of a model hold the same parameters under the same names.
    example_inputs
        Positional arguments with the entry's dtypes and ranks.
    input_names, output_names
        In the order of the arguments and results, state included.
    dynamic_shapes
        As ``torch.export.export`` takes it; None where every shape is fixed.
    state
        The inputs and outputs that are state.
    """

    name: str
    module: nn.Module
    example_inputs: tuple[Tensor, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    dynamic_shapes: tuple[Any, ...] | None
    state: tuple[StateSpecification, ...]


class StaticCache:
    """What transformers asks of a cache, over tensors given from outside.

    Attributes
    ----------
    updated
        The caches after the run: key, value, key, value, ... in the order of the layers.
    """

    is_compileable = False

    def __init__(self, tensors: tuple[Tensor, ...], rows: Tensor, *, single: bool) -> None:
        self._tensors = tensors
        self._rows = rows
        self._single = single
        self.updated: list[Tensor] = []

    def update(
        self, key: Tensor, value: Tensor, layer_index: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Store the new rows of a layer and return its whole cache."""
        stored_key = self._store(self._tensors[2 * layer_index], key)
        stored_value = self._store(self._tensors[2 * layer_index + 1], value)
        self.updated += [stored_key, stored_value]
        return stored_key, stored_value

    def get_seq_length(self, _layer_index: int = 0) -> int:
        """Nothing is read from it: positions are an input."""
        return 0

    def get_mask_sizes(self, _length: int, _layer_index: int = 0) -> tuple[int, int]:
        """Rows of the cache and their offset."""
        return int(self._tensors[0].shape[2]), 0

    def _store(self, stored: Tensor, new: Tensor) -> Tensor:
        written = (self._rows >= 0).reshape(1, 1, -1, 1)
        if not self._single:
            # Rows that stay take any index; torch.where drops what was gathered for them. The
            # upper bound changes nothing: TVM takes none for infinity, which no integer is.
            source = torch.clamp(self._rows, 0, stored.shape[2])
            new = torch.index_select(new, 2, source)
        return torch.where(written, new, stored)


class CachedForward(nn.Module):
    """The model's forward pass over a cache that is an input and an output.

    Parameters
    ----------
    model
        A ``transformers`` causal language model with eager attention.
    single
        Whether every run has one token (``decode``).
    """

    def __init__(self, model: nn.Module, *, single: bool) -> None:
        super().__init__()
        self.model = model
        self.single = single

    def forward(
        self,
        token_ids: Tensor,
        position_ids: Tensor,
        cache_rows: Tensor,
        attention_mask: Tensor,
        *cache: Tensor,
    ) -> tuple[Tensor, ...]:
        """Logits of every token, then the caches with the new rows stored."""
        stored = StaticCache(cache, cache_rows, single=self.single)
        output = self.model(
            input_ids=token_ids,
            position_ids=position_ids,
            attention_mask=attention_mask,
            past_key_values=stored,
            use_cache=True,
        )
        return (output.logits, *stored.updated)


def entry_module(
    name: str,
    model: nn.Module,
    *,
    layers: int,
    kv_heads: int,
    head_size: int,
    context_length: int,
    dtype: str,
) -> EntryModule:
    """Wrap a model for one entry.

    Parameters
    ----------
    name
        ``prefill`` or ``decode``.
    model
        The causal language model both entries share.
    layers, kv_heads, head_size, context_length
        Sizes of the cache: two tensors ``[1, kv_heads, context_length, head_size]`` per layer.
    dtype
        ``float32`` or ``float16``.
    """
    single = name == DECODE
    length = 1 if single else min(_EXAMPLE_LENGTH, context_length)
    element = getattr(torch, dtype)
    shape = (1, kv_heads, context_length, head_size)
    names = state_names(layers)
    inputs = entry_inputs(range(length), 0, context_length=context_length, dtype=dtype)
    example = (
        *(torch.from_numpy(inputs[name]) for name in MODEL_INPUTS),
        *(torch.zeros(shape, dtype=element) for _ in names),
    )
    dynamic: tuple[Any, ...] | None = None
    if not single:
        tokens = torch.export.Dim(SYMBOL, min=SHORTEST_PREFILL, max=context_length)
        dynamic = ({1: tokens}, {1: tokens}, {}, {2: tokens}, tuple({} for _ in names))
    return EntryModule(
        name=name,
        module=CachedForward(model, single=single).eval(),
        example_inputs=example,
        input_names=MODEL_INPUTS + names,
        output_names=("logits", *names),
        dynamic_shapes=dynamic,
        state=tuple(
            StateSpecification(state, len(MODEL_INPUTS) + index, 1 + index, shape, dtype)
            for index, state in enumerate(names)
        ),
    )
