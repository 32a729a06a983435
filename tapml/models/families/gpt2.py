"""GPT-2: learned positions, packed query, key and value in transposed products, tied head."""

from tapml.models.families.family import Family, full_cache

FAMILY = Family(
    architectures=("GPT2LMHeadModel",),
    width="n_embd",
    layers="n_layer",
    heads="n_head",
    kv_heads="",
    cache=full_cache,
    embedding="transformer.wte.weight",
    layer="transformer.h.{}.",
    prefix="transformer.",
)
