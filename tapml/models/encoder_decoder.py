"""Encoder-decoders: what is read once, and a decoder that looks at it in every step.

Two entries over the same parameters:

* ``encode`` takes the source, text as ``source_ids`` int32 ``[1, T]`` with an additive
  ``source_mask`` ``[1, 1, 1, T]``, or ``features`` ``[1, bins, frames]``. It gives the encoder's
  states and stores, per layer of the decoder, the keys and values of its cross-attention:
  ``cross.<i>.key`` and ``cross.<i>.value``, float ``[1, heads, positions, head size]``.
* ``decode`` takes one token as a decoder's does (:mod:`tapml.models.entries`), and the source's
  mask. It reads the cross-attention's caches as they are and never computes them again.

The prompt of the decoder is a few tokens of the model's own (the start; Whisper's language and
task), so it goes through ``decode`` too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from tapml.models.entries import EntryModule, StateSpecification, StaticCache, state_shapes
from tapml.models.families.family import Family
from tapml.models.families.masks import both_ways
from tapml.models.inputs import DECODE, Array
from tapml.models.loaded import Loaded, OwnStep
from tapml.models.stored import ENCODE, StoredEncoderDecoder
from tapml.models.token_rules import TokenRules

_OWN_TOKENS = 6
_SOURCE = 0.6


class _BothCaches(EncoderDecoderCache):  # type: ignore[misc]
    """The caches of transformers over tensors passed from outside; the second is complete."""

    def __init__(self, own: StaticCache, cross: Sequence[Tensor], position: Tensor) -> None:
        layers = [
            SimpleNamespace(keys=key, values=value)
            for key, value in zip(cross[::2], cross[1::2], strict=True)
        ]
        self.self_attention_cache = own
        self.cross_attention_cache = SimpleNamespace(layers=layers)
        self.is_updated = dict.fromkeys(range(len(layers)), True)
        self._position = position

    @property
    def is_sliding(self) -> list[bool]:
        """No layer looks at a window alone, or at anything but keys and values."""
        return [False] * len(self.is_updated)

    is_linear = is_dummy = is_sliding

    def get_seq_length(self, _layer: int = 0) -> Tensor:
        """The position of the token, from which a bias by distance is computed."""
        return self._position


class EncodeForward(nn.Module):
    """The encoder, and what the decoder's cross-attention makes of its states."""

    def __init__(self, model: Any, family: Family) -> None:
        super().__init__()
        self.model = model
        self.family = family

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """States ``[1, positions, width]``, then keys and values per layer.

        The inputs are the source's, then the caches, which are replaced.
        """
        encoder = self.model.get_encoder()
        if self.family.features is None:
            source, mask = inputs[:2]
            rows = mask.expand(-1, -1, source.shape[1], -1)
            with self.family.around(self.model):
                masks = both_ways(encoder, rows)
                states = encoder(input_ids=source, attention_mask=masks).last_hidden_state
        else:
            states = encoder(inputs[0]).last_hidden_state
        shapes = self.family.cache(self.model.config)
        stored = []
        for linears, shape in zip(self.family.cross(self.model), shapes, strict=True):
            for linear, size in zip(linears, shape[1:], strict=True):
                heads = linear(states).view(1, -1, shape.heads, size)
                stored.append(heads.transpose(1, 2).contiguous())
        return (states, *stored)


class DecodeForward(nn.Module):
    """One step of the decoder with both caches as inputs and outputs."""

    def __init__(self, model: Any, family: Family, positions: int) -> None:
        super().__init__()
        self.model = model
        self.family = family
        self.positions = positions

    def forward(
        self,
        token_ids: Tensor,
        position_ids: Tensor,
        cache_rows: Tensor,
        attention_mask: Tensor,
        *rest: Tensor,
    ) -> tuple[Tensor, ...]:
        """Logits, the decoder's caches with the new row, the cross-attention's as they came."""
        if self.family.features is None:
            source_mask, *caches = rest
        else:
            source_mask, caches = None, list(rest)
        count = len(caches) // 2
        own = StaticCache(tuple(caches[:count]), cache_rows, single=True)
        both = _BothCaches(own, caches[count:], position_ids[0, 0])
        # Nothing is computed from them: the cross-attention's caches are complete.
        states = token_ids.new_zeros((1, self.positions, 1), dtype=attention_mask.dtype)
        masks = {} if source_mask is None else {"attention_mask": source_mask}
        with self.family.around(self.model):
            output = self.model(
                encoder_outputs=BaseModelOutput(last_hidden_state=states),
                decoder_input_ids=token_ids,
                past_key_values=both,
                use_cache=True,
                **masks,
                **self.family.arguments(self.model, position_ids, attention_mask),
            )
        return (output.logits, *own.updated, *caches[count:])


@dataclass(frozen=True)
class LoadedEncoderDecoder(Loaded):
    """An encoder-decoder.

    Attributes
    ----------
    family
        Its architecture.
    """

    family: Family = field(kw_only=True)

    @cached_property
    def stored(self) -> StoredEncoderDecoder:
        """The model's sizes and name, without its module."""
        config, family = self.config, self.family
        generation = getattr(self.module, "generation_config", None)
        vocabulary = int(config.vocab_size)
        start, ends = _start(config, generation), _ends(config, generation)
        return StoredEncoderDecoder(
            name=self.name,
            dtype=self.dtype,
            context_length=self.context_length,
            vocabulary=vocabulary,
            start_tokens=start,
            end_tokens=ends,
            rules=TokenRules.of(generation, start=len(start), vocabulary=vocabulary, ends=ends),
            padding=int(getattr(config, "pad_token_id", None) or 0),
            features=None if family.features is None else family.features(config),
            weights_hash=self.weights_hash,
        )

    def _state_shapes(self) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
        """Of the decoder's own cache, and of the cross-attention's."""
        shapes = self.family.cache(self.config)
        cross = state_shapes(shapes, self.stored.positions)
        renamed = {name.replace("cache.", "cross."): shape for name, shape in cross.items()}
        return state_shapes(shapes, self.context_length), renamed

    def entry_modules(self) -> tuple[EntryModule, ...]:
        """``encode`` and ``decode``."""
        own, cross = self._state_shapes()
        positions = self.stored.positions
        encode = EncodeForward(self.module, self.family).eval()
        decode = DecodeForward(self.module, self.family, positions).eval()
        source = self.stored.prepare_source(self._own_source())
        step = self.stored.prepare_step(source, 0, 0)
        return (
            self._entry(ENCODE, encode, source, "states", cross),
            self._entry(DECODE, decode, step, "logits", own | cross),
        )

    def _entry(
        self,
        name: str,
        module: nn.Module,
        inputs: dict[str, Array],
        output: str,
        state: dict[str, tuple[int, ...]],
    ) -> EntryModule:
        element = getattr(torch, self.dtype)
        tensors = tuple(torch.from_numpy(each.copy()) for each in inputs.values())
        empty = tuple(torch.zeros(shape, dtype=element) for shape in state.values())
        return EntryModule(
            name=name,
            module=module,
            example_inputs=(*tensors, *empty),
            input_names=(*inputs, *state),
            output_names=(output, *state),
            dynamic_shapes=None,
            state=tuple(
                StateSpecification(each, len(inputs) + index, 1 + index, state[each], self.dtype)
                for index, each in enumerate(state)
            ),
        )

    def empty_state(self) -> dict[str, Array]:
        """Zeros by name."""
        own, cross = self._state_shapes()
        return {name: np.zeros(shape, self.dtype) for name, shape in (own | cross).items()}

    def rooting_runs(
        self, prompt: Sequence[int] | None = None
    ) -> tuple[tuple[str, dict[str, Array]], ...]:
        """The source, then two steps."""
        source = self.stored.prepare_source(self._own_source())
        steps = (self.stored.prepare_step(source, token, at) for at, token in enumerate((1, 2)))
        return ((ENCODE, source), *((DECODE, each) for each in steps))

    def own_steps(self) -> Iterator[OwnStep]:
        """Encode and decode steps against one ``forward`` of all tokens without a cache."""
        source = self._own_source()
        inputs = self.stored.prepare_source(source)
        tokens = [(index * 7919 + 11) % self.stored.vocabulary for index in range(_OWN_TOKENS)]
        given: dict[str, Any]
        if isinstance(source, tuple):
            ids = torch.from_numpy(inputs["source_ids"]).long()
            mask = (torch.arange(ids.shape[1]) < len(source)).long()[None]
            given = {"input_ids": ids, "attention_mask": mask}
        else:
            given = {"input_features": torch.from_numpy(inputs["features"])}
        with torch.no_grad():
            own = self.module(
                **given, decoder_input_ids=torch.tensor([tokens]), use_cache=False
            ).logits[0]
        entries = {entry.name: entry for entry in self.entry_modules()}
        state = {name: torch.from_numpy(each) for name, each in self.empty_state().items()}
        steps = (self.stored.prepare_step(inputs, token, at) for at, token in enumerate(tokens))
        runs = [(ENCODE, inputs), *((DECODE, each) for each in steps)]
        for number, (name, arrays) in enumerate(runs):
            entry = entries[name]
            tensors = {**state, **{key: torch.from_numpy(each) for key, each in arrays.items()}}
            with torch.no_grad():
                outputs = entry.module(*(tensors[each] for each in entry.input_names))
            state |= {each.name: outputs[each.output_index] for each in entry.state}
            if name == DECODE:
                yield OwnStep(DECODE, outputs[0][0].numpy(), own[number - 1 : number].numpy())

    def _own_source(self) -> tuple[int, ...] | Array:
        """Text that leaves a part to padding; or features by seed."""
        if self.stored.features is not None:
            random = np.random.default_rng(0)
            return random.standard_normal(self.stored.features).astype(np.float32)
        length = max(1, int(self.context_length * _SOURCE))
        return tuple((at * 7919 + 11) % self.stored.vocabulary for at in range(length))


def _start(config: Any, generation: Any) -> tuple[int, ...]:
    """The tokens that the decoder begins with: the start, and those that are forced."""
    names = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
    said = (getattr(each, name, None) for name in names for each in (generation, config))
    start = next((each for each in said if isinstance(each, int)), 0)
    forced = getattr(generation, "forced_decoder_ids", None) or ()
    rest = sorted((int(at), int(token)) for at, token in forced if token is not None)
    return (start, *(token for _, token in rest))


def _ends(config: Any, generation: Any) -> frozenset[int]:
    found: set[int] = set()
    for each in (config, generation):
        value = getattr(each, "eos_token_id", None)
        found.update([value] if isinstance(value, int) else value or ())
    return frozenset(found)
