"""DistilBERT: BERT without kinds of sentences; a vector for each token."""

from tapml.models.families.family import Family

FAMILY = Family(
    architectures=("DistilBertModel",),
    workload="encoder",
    measure="vectors",
    width="dim",
    layers="n_layers",
    heads="n_heads",
    kv_heads="",
    embedding="distilbert.embeddings.word_embeddings.weight",
    layer="distilbert.transformer.layer.{}.",
    prefix="distilbert.",
)
