"""Qwen2 and Qwen1.5: biases on query, key and value; some layers may have a window."""

from tapml.models.families.family import Family
from tapml.models.families.masks import by_layer

FAMILY = Family(architectures=("Qwen2ForCausalLM",), arguments=by_layer)
