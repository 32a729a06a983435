"""The two entries of a decoder-only model, as torch modules for export.

transformers' own cache is unsuitable: ``DynamicCache`` does not export to Relax, and positions
computed in the model mix 32 and 64-bit integers. So positions are inputs, and the cache is a fixed
number of rows that each run takes and returns:

* ``token_ids``      int32 ``[1, S]``
* ``position_ids``   int32 ``[1, S]``
* ``cache_rows``     int32 ``[T]``: for every cache row the index of the new token to store there,
  or -1 to keep the row
* ``attention_mask`` float ``[1, 1, S, T]``: 0 where a token may attend, else a large negative
* per layer ``cache.<i>.key`` and ``cache.<i>.value``, float ``[1, KV heads, T, head size]``

What else a family needs, such as the mask of an attention window, is computed from positions and
mask inside the entry (:class:`~tapml.models.families.family.Family`): it is exported, carved and
checked with the rest, and a runner gives the same four inputs for every family.

The outputs are ``logits`` ``[1, S, vocabulary]`` (of every position, so that teacher forcing needs
one run) and the caches in the same order. ``prefill`` has a dynamic S of at least 2, ``decode`` has
S = 1, because the compiler's fusion fails for a length that may be 1 or more.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from tapml.models.families.family import CacheShape, Family
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
    """One cache tensor and its positions in the entry's inputs and outputs.

    Attributes
    ----------
    name
        ``cache.<layer>.key`` or ``cache.<layer>.value``; the same in every entry.
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
        The torch module; all entries of a model have the same parameters under the same names.
    example_inputs
        Positional arguments with the entry's dtypes and ranks.
    input_names, output_names
        In the order of the arguments and results, state included.
    dynamic_shapes
        As ``torch.export.export`` takes it; None if every shape is static.
    state
        The inputs and outputs that are state.
    program
        What ``torch.export.export`` gives, if the module was exported before.
    """

    name: str
    module: nn.Module
    example_inputs: tuple[Tensor, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    dynamic_shapes: tuple[Any, ...] | None
    state: tuple[StateSpecification, ...]
    program: torch.export.ExportedProgram | None = None


class StaticCache:
    """The cache interface of transformers, over tensors passed from outside.

    `updated` has the caches after the run: key, value, key, value, ... in the order of the layers;
    `count` is the tokens before the run, for a class that has no positions as an input.
    """

    is_compileable = False

    def __init__(
        self,
        tensors: tuple[Tensor, ...],
        rows: Tensor,
        *,
        single: bool,
        count: Tensor | int = 0,
    ) -> None:
        self._tensors = tensors
        self._rows = rows
        self._single = single
        self._count = count
        self.updated: list[Tensor] = []

    def update(
        self, key: Tensor, value: Tensor, layer_index: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Store the new rows of a layer and return its complete cache."""
        stored_key = self._store(self._tensors[2 * layer_index], key)
        stored_value = self._store(self._tensors[2 * layer_index + 1], value)
        self.updated += [stored_key, stored_value]
        return stored_key, stored_value

    def get_seq_length(self, _layer_index: int = 0) -> Tensor | int:
        """Tokens before the run; 0 where positions are an input."""
        return self._count

    def get_mask_sizes(self, _length: int, _layer_index: int = 0) -> tuple[int, int]:
        """Number of cache rows and their offset."""
        return int(self._tensors[0].shape[2]), 0

    def _store(self, stored: Tensor, new: Tensor) -> Tensor:
        written = (self._rows >= 0).reshape(1, 1, -1, 1)
        if not self._single:
            # Rows to keep take any index; torch.where drops what was gathered for them. The upper
            # bound has no effect, but TVM would otherwise use infinity, which is no integer.
            source = torch.clamp(self._rows, 0, stored.shape[2])
            new = torch.index_select(new, 2, source)
        return torch.where(written, new, stored)


class CachedForward(nn.Module):
    """The model's forward pass with the cache as input and output.

    `model` is a ``transformers`` causal language model of `family` with eager attention; `single`
    means that every run has one token (``decode``).
    """

    def __init__(self, model: nn.Module, family: Family, *, single: bool) -> None:
        super().__init__()
        self.model = model
        self.family = family
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
        count = position_ids[0, 0] if self.family.counted else 0
        stored = StaticCache(cache, cache_rows, single=self.single, count=count)
        if self.family.whole:
            # Rows behind the text are read too: no causal model's logits depend on them.
            tokens = token_ids.to(cache[0].dtype).reshape(1, 1, -1, 1)
            text, _ = stored.update(tokens, tokens, 0)
            # A class without a cache may have no such argument.
            known = inspect.signature(self.model.forward).parameters
            alone = {"use_cache": False} if "use_cache" in known else {}
            whole = self.model(input_ids=text.reshape(1, -1).to(torch.int64), **alone)
            return (torch.index_select(whole.logits, 1, position_ids[0]), *stored.updated)
        with self.family.around(self.model):
            output = self.model(
                input_ids=token_ids,
                past_key_values=stored,
                use_cache=True,
                **self.family.arguments(self.model, position_ids, attention_mask),
            )
        return (output.logits, *stored.updated)


def entry_module(
    name: str,
    model: nn.Module,
    family: Family,
    *,
    cache: Sequence[CacheShape],
    context_length: int,
    dtype: str,
) -> EntryModule:
    """Wrap a model for one entry.

    Parameters
    ----------
    name
        ``prefill`` or ``decode``.
    model
        The causal language model that both entries share.
    family
        Its family.
    cache, context_length
        Sizes of the cache: two tensors ``[1, heads, context_length, head size]`` per layer.
    dtype
        ``float32`` or ``float16``.
    """
    single = name == DECODE
    length = 1 if single else min(_EXAMPLE_LENGTH, context_length)
    element = getattr(torch, dtype)
    shapes = state_shapes(cache, context_length)
    names = tuple(shapes)
    inputs = entry_inputs(range(length), 0, context_length=context_length, dtype=dtype)
    example = (
        *(torch.from_numpy(inputs[name]) for name in MODEL_INPUTS),
        *(torch.zeros(shape, dtype=element) for shape in shapes.values()),
    )
    dynamic: tuple[Any, ...] | None = None
    if not single:
        tokens = torch.export.Dim(SYMBOL, min=SHORTEST_PREFILL, max=context_length)
        dynamic = ({1: tokens}, {1: tokens}, {}, {2: tokens}, tuple({} for _ in names))
    return EntryModule(
        name=name,
        module=CachedForward(model, family, single=single).eval(),
        example_inputs=example,
        input_names=MODEL_INPUTS + names,
        output_names=("logits", *names),
        dynamic_shapes=dynamic,
        state=tuple(
            StateSpecification(state, len(MODEL_INPUTS) + index, 1 + index, shapes[state], dtype)
            for index, state in enumerate(names)
        ),
    )


def state_shapes(cache: Sequence[CacheShape], context_length: int) -> dict[str, tuple[int, ...]]:
    """The shape of every cache tensor by name, in the order of the entries' arguments."""
    sizes = ((each.heads, size) for each in cache for size in (each.key_size, each.value_size))
    names = state_names(len(cache))
    return {
        name: (1, heads, context_length, size)
        for name, (heads, size) in zip(names, sizes, strict=True)
    }
