"""InternLM, the first: a Llama with biases on query, key, value and output."""

from collections.abc import Mapping
from typing import Any

from tapml.models.families.family import Family
from tapml.models.families.published import Published, same_keys


def _config(config: Mapping[str, Any]) -> dict[str, Any]:
    made = same_keys(config) | {"attention_bias": bool(config.get("bias", True))}
    rotary = config.get("rotary")
    if isinstance(rotary, dict) and "base" in rotary:
        # Its other kind, dynamic, acts beyond the positions that a context stays within.
        made["rope_theta"] = float(rotary["base"])
    return made


def _class() -> Any:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM


FAMILY = Family(
    architectures=("InternLMForCausalLM",),
    kv_heads="",
    own_class=_class,
    published=Published(config=_config),
)
