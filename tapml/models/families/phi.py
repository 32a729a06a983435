"""Phi-1, Phi-1.5 and Phi-2: parallel attention, partial rotary embedding, a bias on the head."""

from tapml.models.families.family import Family

FAMILY = Family(architectures=("PhiForCausalLM",))
