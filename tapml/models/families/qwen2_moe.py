"""Qwen2-MoE and Qwen1.5-MoE: experts, and one that all tokens share."""

from tapml.models.families.family import BATCHED_EXPERTS, Family
from tapml.models.families.masks import by_layer

FAMILY = Family(architectures=("Qwen2MoeForCausalLM",), arguments=by_layer, loading=BATCHED_EXPERTS)
