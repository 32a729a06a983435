"""BERT with classes: a row of logits for each sentence."""

from tapml.models.families.family import Family

FAMILY = Family(
    architectures=("BertForSequenceClassification",),
    workload="encoder",
    measure="classes",
    kv_heads="",
    embedding="bert.embeddings.word_embeddings.weight",
    layer="bert.encoder.layer.{}.",
    prefix="bert.",
)
