"""RWKV5, which tapml computes itself (:mod:`tapml.models.rwkv`)."""

from tapml.models.families.rwkv import rwkv_family

FAMILY = rwkv_family("Rwkv5ForCausalLM")
