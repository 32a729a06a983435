"""The two entries of a recurrent model, and the model in memory.

The inputs of an entry are ``token_ids`` int32 ``[1, S]`` and the state that the family names; its
outputs are ``logits`` ``[1, S, vocabulary]`` and the state after the last token. As of a decoder,
``prefill`` has a dynamic S of at least 2 and ``decode`` has S = 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn

from tapml.models.entries import SYMBOL, EntryModule, StateSpecification
from tapml.models.families.family import Family
from tapml.models.inputs import DECODE, PREFILL, SHORTEST_PREFILL, TOKENS
from tapml.models.loaded import LoadedModel
from tapml.models.stored import StoredDecoder, StoredRecurrent

_EXAMPLE_LENGTH: Final = 5


class RecurrentForward(nn.Module):
    """A recurrent model of `family` with its state as input and output."""

    def __init__(self, model: nn.Module, family: Family) -> None:
        super().__init__()
        self.model = model
        self.family = family

    def forward(self, token_ids: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """Logits of every token, then the state after them."""
        logits, after = self.family.step(self.model, token_ids, state)
        return (logits, *after)


@dataclass(frozen=True)
class LoadedRecurrent(LoadedModel):
    """A recurrent language model; `context_length` bounds the tokens of a run and no memory."""

    stored_kind: ClassVar[type[StoredDecoder]] = StoredRecurrent

    @property
    def state_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of all state by name."""
        return self.family.state(self.config)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return int(self.config.num_hidden_layers)

    def entry_modules(self) -> tuple[EntryModule, ...]:
        """``prefill`` and ``decode`` over the same parameters, ready for export."""
        return tuple(self._entry(name) for name in (PREFILL, DECODE))

    def _entry(self, name: str) -> EntryModule:
        single = name == DECODE
        shapes = self.state_shapes
        length = 1 if single else min(_EXAMPLE_LENGTH, self.context_length)
        dynamic: tuple[Any, ...] | None = None
        if not single:
            tokens = torch.export.Dim(SYMBOL, min=SHORTEST_PREFILL, max=self.context_length)
            dynamic = ({1: tokens}, tuple({} for _ in shapes))
        return EntryModule(
            name=name,
            module=RecurrentForward(self.module, self.family).eval(),
            example_inputs=(
                torch.zeros((1, length), dtype=torch.int32),
                *(torch.from_numpy(each) for each in self.empty_state().values()),
            ),
            input_names=(TOKENS, *shapes),
            output_names=("logits", *shapes),
            dynamic_shapes=dynamic,
            state=tuple(
                StateSpecification(state, 1 + index, 1 + index, shape, self.dtype)
                for index, (state, shape) in enumerate(shapes.items())
            ),
        )
