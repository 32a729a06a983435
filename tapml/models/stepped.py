"""Decoders whose layers keep state besides keys and values: one entry, a token at a time.

Such a class (Mamba, Jamba, LFM2, Qwen3-Next) has two ways through a layer: a whole text in chunks
or in a loop over its tokens, which no graph of any length has, and one token on the state. The
entry is the second, so a prompt goes through it token by token; the class's own forward, with which
it is compared, goes the first. The inputs are a decoder's (:mod:`tapml.models.entries`), the state
is of each layer what it keeps:

* ``cache.<i>.key`` and ``cache.<i>.value``, float ``[1, KV heads, T, head size]``
* ``state.<i>.convolution.<k>`` and ``state.<i>.recurrent.<k>`` of the class's shapes
* ``state.held.<path>.<attribute>``: a tensor that a module keeps in an attribute (RecurrentGemma)
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn

from tapml.models.entries import EntryModule, StateSpecification, StaticCache
from tapml.models.families.family import CacheShape, Family, own_state
from tapml.models.inputs import DECODE, MODEL_INPUTS, Array, entry_inputs
from tapml.models.loaded import LoadedModel, OwnStep
from tapml.models.stored import StoredDecoder, StoredStepped

# What classes call the cache that their forward takes.
CACHES: Final = ("past_key_values", "cache_params")
_ROOTED: Final = 3
_HELD: Final = "state.held."


class KeptState(StaticCache):
    """The cache interface of transformers with the state of every layer by name.

    `kept` has the state after the run. Classes write into a state, so it holds copies.
    """

    def __init__(self, state: Mapping[str, Tensor], rows: Tensor, count: Tensor | int) -> None:
        super().__init__((), rows, single=True, count=count)
        self.kept = {name: each.clone() for name, each in state.items()}

    def update(
        self, key: Tensor, value: Tensor, layer_index: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Store the new row of a layer and return its complete cache."""
        for name, new in zip(_cache_names(layer_index), (key, value), strict=True):
            self.kept[name] = self._store(self.kept[name], new)
        found = [self.kept[name] for name in _cache_names(layer_index)]
        return found[0], found[1]

    def get_mask_sizes(self, _length: int, _layer_index: int = 0) -> tuple[int, int]:
        """Number of cache rows and their offset."""
        return int(self._rows.shape[0]), 0

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """The last inputs of a layer's convolution, which the class writes into."""
        return self.kept.get(_state_name(layer_idx, "convolution", state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """A layer's recurrent state."""
        return self.kept.get(_state_name(layer_idx, "recurrent", state_idx))

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **_: object
    ) -> Tensor:
        """Append inputs; returns the last ones with these."""
        name = _state_name(layer_idx, "convolution", state_idx)
        whole = torch.cat([self.kept[name], conv_states], dim=-1)
        self.kept[name] = whole[..., -self.kept[name].shape[-1] :]
        return whole

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: object
    ) -> Tensor:
        """Replace a layer's recurrent state."""
        name = _state_name(layer_idx, "recurrent", state_idx)
        self.kept[name] = recurrent_states.to(self.kept[name].dtype)
        return self.kept[name]

    def get_linear_cache(self, layer_idx: int) -> Tensor:
        """The matrices of a layer of linear attention (MiniMax)."""
        return self.kept[_state_name(layer_idx, "linear", 0)]

    def set_linear_cache(self, layer_idx: int, linear_cache: Tensor) -> None:
        """Replace them."""
        name = _state_name(layer_idx, "linear", 0)
        self.kept[name] = linear_cache.to(self.kept[name].dtype)

    def is_recording_past(self, *_: object) -> bool:
        """No: nothing is taken back."""
        return False

    def has_previous_state(self, *_: object, **__: object) -> bool:
        """Yes: before the first token it is zeros."""
        return True


class SteppedForward(nn.Module):
    """A decoder of `family` for one token, with everything that it keeps as input and output.

    A class whose forward takes no such cache goes its family's own step.
    """

    def __init__(self, model: nn.Module, family: Family, names: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.family = family
        self.names = tuple(names)
        known = inspect.signature(model.forward).parameters
        self.cache = next((each for each in CACHES if each in known), "")

    def forward(
        self,
        token_ids: Tensor,
        position_ids: Tensor,
        cache_rows: Tensor,
        attention_mask: Tensor,
        *state: Tensor,
    ) -> tuple[Tensor, ...]:
        """Logits of the token, then the state after it."""
        if self.family.step is not own_state:
            logits, after = self.family.step(self.model, token_ids, state)
            return (logits, *after)
        count = position_ids[0, 0] if self.family.counted else 0
        kept = KeptState(dict(zip(self.names, state, strict=True)), cache_rows, count)
        with self.family.around(self.model), _held(self.model, kept.kept):
            output = self.model(
                input_ids=token_ids,
                use_cache=True,
                **{self.cache: kept},
                **self.family.arguments(self.model, position_ids, attention_mask),
            )
        return (output.logits, *(kept.kept[name] for name in self.names))


@contextmanager
def _held(model: nn.Module, kept: dict[str, Tensor]) -> Iterator[None]:
    """Attributes of modules that are state, which is theirs before a run and `kept` after it."""
    places = {
        name: (model.get_submodule(path), attribute)
        for name in kept
        if name.startswith(_HELD)
        for path, _, attribute in [name.removeprefix(_HELD).rpartition(".")]
    }
    for name, place in places.items():
        setattr(*place, kept[name])
    try:
        yield
        kept.update({name: getattr(*place).to(kept[name].dtype) for name, place in places.items()})
    finally:
        for place in places.values():
            setattr(*place, None)


def absent_attributes(model: nn.Module) -> list[tuple[str, nn.Module, str]]:
    """Attributes that are None, by the name of the state that they may become."""
    return [
        (f"{_HELD}{path}.{attribute}", part, attribute)
        for path, part in model.named_modules()
        for attribute, value in vars(part).items()
        if value is None and not attribute.startswith("_")
    ]


@dataclass(frozen=True)
class LoadedStepped(LoadedModel):
    """A decoder that reads a prompt token by token."""

    stored_kind: ClassVar[type[StoredDecoder]] = StoredStepped

    @property
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all state by name: rows for layers that attend, then the rest."""
        found: dict[str, tuple[int, ...]] = {}
        for layer, each in enumerate(self.cache):
            for name, size in zip(_cache_names(layer), each[1:], strict=True):
                if each.heads:
                    found[name] = (1, each.heads, self.context_length, size)
        return found | dict(self.family.state(self.config))

    def entry_modules(self) -> tuple[EntryModule, ...]:
        """``decode``, ready for export."""
        shapes = self.state_shapes
        names = tuple(shapes)
        inputs = entry_inputs((0,), 0, context_length=self.context_length, dtype=self.dtype)
        return (
            EntryModule(
                name=DECODE,
                module=SteppedForward(self.module, self.family, names).eval(),
                example_inputs=(
                    *(torch.from_numpy(inputs[name]) for name in MODEL_INPUTS),
                    *(torch.from_numpy(each) for each in self.empty_state().values()),
                ),
                input_names=MODEL_INPUTS + names,
                output_names=("logits", *names),
                dynamic_shapes=None,
                state=tuple(
                    StateSpecification(
                        name, len(MODEL_INPUTS) + index, 1 + index, shapes[name], self.dtype
                    )
                    for index, name in enumerate(names)
                ),
            ),
        )

    def rooting_runs(
        self, prompt: Sequence[int] | None = None
    ) -> tuple[tuple[str, dict[str, Array]], ...]:
        """The first tokens of a prompt, so that one of them reads what others left."""
        tokens = list(prompt) if prompt is not None else self._rooting_prompt()
        return tuple(self.stored.prompt_runs(tokens[:_ROOTED]))

    def own_steps(self) -> Iterator[OwnStep]:
        """Every token against one ``forward`` of all without a cache."""
        tokens, own = self._own_logits()
        (entry,) = self.entry_modules()
        state = {name: torch.from_numpy(each) for name, each in self.empty_state().items()}
        for position, (name, inputs) in enumerate(self.stored.prompt_runs(tokens)):
            tensors = {**state, **{key: torch.from_numpy(each) for key, each in inputs.items()}}
            with torch.no_grad():
                outputs = entry.module(*(tensors[each] for each in entry.input_names))
            state = {each.name: outputs[each.output_index] for each in entry.state}
            yield OwnStep(name, outputs[0][0].numpy(), own[position : position + 1])


def kept_by(layer: Any, number: int) -> tuple[CacheShape | None, dict[str, tuple[int, ...]]]:
    """What a layer of transformers' cache keeps: its rows, and the shapes of the rest by name.

    Rows without heads are none; None stands for keys and values of another form.
    """
    pair = [getattr(layer, part, None) for part in ("keys", "values")]
    states = {
        _state_name(number, part, index): tuple(each.shape)
        for part, kept in (("convolution", "conv_states"), ("recurrent", "recurrent_states"))
        for index, each in _numbered(getattr(layer, kept, None))
    }
    if all(each is None for each in pair):
        return CacheShape(0, 0, 0), states
    if any(not isinstance(each, Tensor) or each.dim() != 4 for each in pair):
        return None, states
    key, value = (tuple(each.shape) for each in pair if each is not None)
    return CacheShape(key[1], key[3], value[3]), states


def _numbered(kept: Any) -> list[tuple[int, Tensor]]:
    found = kept if isinstance(kept, dict) else {0: kept}
    return [(index, each) for index, each in found.items() if isinstance(each, Tensor)]


def _cache_names(layer: int) -> tuple[str, str]:
    return f"cache.{layer}.key", f"cache.{layer}.value"


def _state_name(layer: int, part: str, index: int) -> str:
    return f"state.{layer}.{part}.{index}"
