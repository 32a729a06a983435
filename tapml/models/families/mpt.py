"""MPT: ALiBi in place of positions, packed query, key and value, tied head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tapml.models.families.family import Family

if TYPE_CHECKING:
    from torch import Tensor, nn


def _arguments(_module: nn.Module, _position_ids: Tensor, attention_mask: Tensor) -> dict[str, Any]:
    return {"attention_mask": attention_mask}


FAMILY = Family(
    architectures=("MptForCausalLM",),
    width="d_model",
    layers="n_layers",
    heads="n_heads",
    kv_heads="",
    positions="max_seq_len",
    embedding="transformer.wte.weight",
    layer="transformer.blocks.{}.",
    prefix="transformer.",
    arguments=_arguments,
)
