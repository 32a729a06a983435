"""DistilBERT with classes: a row of logits for each sentence."""

from dataclasses import replace

from tapml.models.families.distilbert import FAMILY as _VECTORS

FAMILY = replace(
    _VECTORS, architectures=("DistilBertForSequenceClassification",), measure="classes"
)
