"""Gemma 3, text: normalised heads; layers with and without a window rotate at their own rates."""

from tapml.models.families.family import Family
from tapml.models.families.masks import by_layer

FAMILY = Family(architectures=("Gemma3ForCausalLM",), arguments=by_layer)
