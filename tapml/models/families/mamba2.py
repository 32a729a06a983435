"""Mamba2: a recurrent model whose heads keep a matrix (:mod:`tapml.models.mamba2`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tapml.models.families.family import Family

if TYPE_CHECKING:
    from torch import Tensor, nn


def _state(config: Any) -> dict[str, tuple[int, ...]]:
    from tapml.models.mamba2 import state_shapes

    return state_shapes(config)


def _step(
    module: nn.Module, token_ids: Tensor, state: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    from tapml.models.mamba2 import run_mamba2

    return run_mamba2(module, token_ids, state)


FAMILY = Family(
    architectures=("Mamba2ForCausalLM",),
    workload="recurrent",
    heads="num_heads",
    kv_heads="",
    positions="",
    embedding="backbone.embeddings.weight",
    layer="backbone.layers.{}.",
    state=_state,
    step=_step,
)
