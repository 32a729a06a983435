"""OPT: learned positions from the third row on, biases everywhere, ReLU, tied head."""

from tapml.models.families.family import Family, full_cache

FAMILY = Family(
    architectures=("OPTForCausalLM",),
    width="word_embed_proj_dim",
    kv_heads="",
    cache=full_cache,
    embedding="model.decoder.embed_tokens.weight",
    layer="model.decoder.layers.{}.",
    prefix="model.",
)
