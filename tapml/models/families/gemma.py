"""Gemma: scaled embeddings, tied head, heads wider than the model's width over their number."""

from tapml.models.families.family import Family

FAMILY = Family(architectures=("GemmaForCausalLM",))
