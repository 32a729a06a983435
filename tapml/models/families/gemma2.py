"""Gemma 2: layers with and without a window in turn, softcaps, norms around each part."""

from tapml.models.families.family import Family
from tapml.models.families.masks import by_layer

FAMILY = Family(architectures=("Gemma2ForCausalLM",), arguments=by_layer)
