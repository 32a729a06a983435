"""The architectures of GGUF files, and what the class of ``transformers`` calls their parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tapml_targets.errors import InputError

# Names of a layer's weights, and those outside of layers.
_IN_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTSIDE: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_NORMED_HEADS: Final = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}


@dataclass(frozen=True, kw_only=True)
class GgufArchitecture:
    """How files of an architecture differ from the class.

    Attributes
    ----------
    class_name, model_type
        Of ``transformers``.
    turned
        Whether the rows of queries and keys have the pairs of a rotation side by side.
    biases
        Parts of a layer that have one.
    more
        Parts of a layer that a Llama has not.
    shifted
        Whether norms are stored with 1 added, which the class adds itself.
    own
        Further keys of the configuration.
    """

    class_name: str
    model_type: str
    turned: bool = False
    biases: frozenset[str] = frozenset()
    more: Mapping[str, str] = field(default_factory=dict)
    shifted: bool = False
    own: Mapping[str, Any] = field(default_factory=dict)


ARCHITECTURES: Final = {
    "llama": GgufArchitecture(class_name="LlamaForCausalLM", model_type="llama", turned=True),
    "qwen2": GgufArchitecture(
        class_name="Qwen2ForCausalLM",
        model_type="qwen2",
        biases=frozenset({"attn_q", "attn_k", "attn_v"}),
    ),
    "qwen3": GgufArchitecture(
        class_name="Qwen3ForCausalLM", model_type="qwen3", more=_NORMED_HEADS
    ),
    "gemma": GgufArchitecture(
        class_name="GemmaForCausalLM",
        model_type="gemma",
        shifted=True,
        own={"hidden_act": "gelu_pytorch_tanh"},
    ),
}
"""By ``general.architecture``."""


def architecture_of(fields: Mapping[str, Any], where: object) -> tuple[str, GgufArchitecture]:
    """The architecture of a file and its name there.

    Raises
    ------
    InputError
        If no class here has that name.
    """
    name = str(fields.get("general.architecture"))[:40]
    if name not in ARCHITECTURES:
        raise InputError(
            f"{where} has the architecture {name!r}: expected {', '.join(ARCHITECTURES)}; "
            "take the model's safetensors folder, and --quantize int4"
        )
    return name, ARCHITECTURES[name]


def name_here(name: str, architecture: GgufArchitecture, where: object) -> str:
    """A tensor's name in the class.

    Raises
    ------
    InputError
        If the architecture has no such tensor.
    """
    base, _, end = name.rpartition(".")
    found, part = _OUTSIDE.get(base), base
    if base.startswith("blk."):
        _, _, rest = base.partition(".")
        number, _, part = rest.partition(".")
        inner = {**_IN_LAYER, **architecture.more}.get(part)
        if number.isdecimal() and inner is not None:
            found = f"model.layers.{int(number)}.{inner}"
    if found is None or not (end == "weight" or (end == "bias" and part in architecture.biases)):
        raise InputError(
            f"{where} has the tensor {name[:80]!r}, which no {architecture.model_type} model has: "
            "the model would be computed without it; take its safetensors folder"
        )
    return f"{found}.{end}"
