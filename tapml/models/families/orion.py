"""Orion: a StableLM whose heads rotate whole."""

from collections.abc import Mapping
from typing import Any

from tapml.models.families.family import Family
from tapml.models.families.published import Published, same_keys


def _config(config: Mapping[str, Any]) -> dict[str, Any]:
    made = same_keys(config)
    return made | {
        # Its norms are layer norms, whatever the key says.
        "layer_norm_eps": made.pop("rms_norm_eps", 1e-5),
        "partial_rotary_factor": 1.0,
        "use_qkv_bias": bool(config.get("attention_bias", False)),
    }


def _class() -> Any:
    from transformers import StableLmForCausalLM

    return StableLmForCausalLM


FAMILY = Family(
    architectures=("OrionForCausalLM",), own_class=_class, published=Published(config=_config)
)
