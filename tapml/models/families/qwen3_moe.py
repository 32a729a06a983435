"""Qwen3-MoE: Qwen3 with experts."""

from tapml.models.families.family import BATCHED_EXPERTS, Family
from tapml.models.families.masks import windowed

FAMILY = Family(architectures=("Qwen3MoeForCausalLM",), arguments=windowed, loading=BATCHED_EXPERTS)
