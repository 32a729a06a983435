"""GPT-NeoX: Pythia, RedPajama-INCITE. Packed query, key and value; partial rotary embedding."""

from tapml.models.families.family import Family, full_cache

FAMILY = Family(
    architectures=("GPTNeoXForCausalLM",),
    embedding="gpt_neox.embed_in.weight",
    layer="gpt_neox.layers.{}.",
    kv_heads="",
    cache=full_cache,
)
