"""BERT, MiniLM and other encoders of its class: a vector for each token."""

from tapml.models.families.family import Family

FAMILY = Family(
    architectures=("BertModel",),
    workload="encoder",
    measure="vectors",
    kv_heads="",
    embedding="bert.embeddings.word_embeddings.weight",
    layer="bert.encoder.layer.{}.",
    prefix="bert.",
)
