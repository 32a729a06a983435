"""Phi-3: packed query, key and value; packed gate and up; one attention window."""

from tapml.models.families.family import Family
from tapml.models.families.masks import windowed

FAMILY = Family(architectures=("Phi3ForCausalLM",), arguments=windowed)
