"""MPT: ALiBi in place of positions, packed query, key and value, tied head."""

from __future__ import annotations

from tapml.models.families.family import Family
from tapml.models.families.sentence_masks import own_positions

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
    arguments=own_positions,
)
