"""Mixtral: a Mistral whose feed-forward parts are experts, some of them for each token."""

from tapml.models.families.family import BATCHED_EXPERTS, Family
from tapml.models.families.masks import windowed

FAMILY = Family(architectures=("MixtralForCausalLM",), arguments=windowed, loading=BATCHED_EXPERTS)
