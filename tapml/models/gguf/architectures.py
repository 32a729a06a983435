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
# Norms before and after each half of a layer.
_FOUR_NORMS: Final = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
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
        Parts of a layer that a Llama has not, or that are called otherwise.
    shifted
        Whether norms are stored with 1 added, which the class adds itself.
    own
        Further keys of the configuration.
    numbers
        Fields of a file that are further keys, by their names without the architecture's.
    scaled_by_width
        Number of layers of models whose scores are scaled by another size than the head's: the
        hidden size over the heads. None where the class knows no such scale.
    """

    class_name: str
    model_type: str
    turned: bool = False
    biases: frozenset[str] = frozenset()
    more: Mapping[str, str] = field(default_factory=dict)
    shifted: bool = False
    own: Mapping[str, Any] = field(default_factory=dict)
    numbers: Mapping[str, str] = field(default_factory=dict)
    scaled_by_width: int | None = None


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
    "gemma2": GgufArchitecture(
        class_name="Gemma2ForCausalLM",
        model_type="gemma2",
        shifted=True,
        more=_FOUR_NORMS,
        own={"hidden_activation": "gelu_pytorch_tanh"},
        numbers={
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
            "attention.sliding_window": "sliding_window",
        },
        scaled_by_width=46,
    ),
    "gemma3": GgufArchitecture(
        class_name="Gemma3ForCausalLM",
        model_type="gemma3_text",
        shifted=True,
        more=_FOUR_NORMS | _NORMED_HEADS,
        own={"hidden_activation": "gelu_pytorch_tanh", "rope_local_base_freq": 10000.0},
        numbers={"attention.sliding_window": "sliding_window"},
        scaled_by_width=62,
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
