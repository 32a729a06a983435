"""BART: text to text with learned positions."""

from tapml.models.families.cross_attention import cross_attention, decoder_cache, masked
from tapml.models.families.family import Family

FAMILY = Family(
    architectures=("BartForConditionalGeneration",),
    workload="encoder_decoder",
    width="d_model",
    layers="encoder_layers",
    heads="encoder_attention_heads",
    kv_heads="",
    positions="max_position_embeddings",
    embedding="model.shared.weight",
    layer="model.encoder.layers.{}.",
    cache=decoder_cache,
    arguments=masked,
    cross=cross_attention,
)
