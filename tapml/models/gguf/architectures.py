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
WINDOW: Final = "attention.sliding_window"
"""The field of a window that tokens see back through."""
_WINDOW: Final = {WINDOW: "sliding_window"}
# The class's default is beyond most vocabularies.
_NO_PADDING: Final = {"pad_token_id": None}
# Of all experts at once, where files of other kinds have a layer for each.
_EXPERTS: Final = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
_COUNTS: Final = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
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
        Parts of a layer that a Llama has not, or that are called otherwise; ``{}`` is the number
        of an expert.
    shifted
        Whether norms are stored with 1 added, which the class adds itself.
    own
        Further keys of the configuration.
    numbers
        Fields of a file that are further keys, by their names without the architecture's.
    turns_a_part
        Whether a part of each head may rotate alone.
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
    turns_a_part: bool = False
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
    "qwen3moe": GgufArchitecture(
        class_name="Qwen3MoeForCausalLM",
        model_type="qwen3_moe",
        more=_NORMED_HEADS | _EXPERTS,
        own={"norm_topk_prob": True},
        numbers=_COUNTS,
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
            **_WINDOW,
        },
        scaled_by_width=46,
    ),
    "gemma3": GgufArchitecture(
        class_name="Gemma3ForCausalLM",
        model_type="gemma3_text",
        shifted=True,
        more=_FOUR_NORMS | _NORMED_HEADS,
        own={"hidden_activation": "gelu_pytorch_tanh", "rope_local_base_freq": 10000.0},
        numbers=_WINDOW,
        scaled_by_width=62,
    ),
    "phi3": GgufArchitecture(
        class_name="Phi3ForCausalLM",
        model_type="phi3",
        more={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        own=_NO_PADDING,
        numbers=_WINDOW,
        turns_a_part=True,
    ),
    "granite": GgufArchitecture(
        class_name="GraniteForCausalLM",
        model_type="granite",
        turned=True,
        numbers={
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
        },
    ),
    "smollm3": GgufArchitecture(
        class_name="SmolLM3ForCausalLM", model_type="smollm3", turned=True, own=_NO_PADDING
    ),
    "olmo2": GgufArchitecture(
        class_name="Olmo2ForCausalLM",
        model_type="olmo2",
        more=_NORMED_HEADS
        | {
            "post_attention_norm": "post_attention_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        },
    ),
}
"""By ``general.architecture``."""
_MIXTRAL: Final = GgufArchitecture(
    class_name="MixtralForCausalLM",
    model_type="mixtral",
    turned=True,
    more={
        "ffn_gate_inp": "mlp.gate",
        "ffn_gate_exps": "mlp.experts.{}.w1",
        "ffn_up_exps": "mlp.experts.{}.w3",
        "ffn_down_exps": "mlp.experts.{}.w2",
    },
    own={"sliding_window": None},
    numbers={"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
)


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
    if name == "llama" and fields.get("llama.expert_count"):
        return name, _MIXTRAL
    return name, ARCHITECTURES[name]


def name_here(name: str, architecture: GgufArchitecture, where: object) -> str:
    """A tensor's name in the class, with ``{}`` for the number of an expert if it is of all.

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
