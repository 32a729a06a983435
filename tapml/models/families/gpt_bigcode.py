"""GPTBigCode: SantaCoder and StarCoder. GPT-2 with one key and value head for all queries."""

from tapml.models.families.family import Family

FAMILY = Family(
    architectures=("GPTBigCodeForCausalLM",),
    width="n_embd",
    layers="n_layer",
    heads="n_head",
    kv_heads="",
    embedding="transformer.wte.weight",
    layer="transformer.h.{}.",
    prefix="transformer.",
)
