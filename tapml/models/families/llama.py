"""Llama, and what has its class: TinyLlama, WizardMath, SmolLM2."""

from tapml.models.families.family import Family

FAMILY = Family(architectures=("LlamaForCausalLM",))
