"""Qwen3: normalised heads; some layers may have a window."""

from tapml.models.families.family import Family
from tapml.models.families.masks import by_layer

FAMILY = Family(architectures=("Qwen3ForCausalLM",), arguments=by_layer)
