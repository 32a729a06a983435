"""Mistral: a Llama with one attention window for all layers."""

from tapml.models.families.family import Family
from tapml.models.families.masks import windowed

FAMILY = Family(architectures=("MistralForCausalLM",), arguments=windowed)
