"""Tiny seeded models of classes without a family's file, and unusual settings of known families."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import transformers

from tests.models.families import WINDOW, make_family

# Under the usual names: a configuration class knows which of its own they are.
_TEXT: Final[dict[str, Any]] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 60,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
_ENCODER: Final[dict[str, Any]] = {
    **{name: value for name, value in _TEXT.items() if name != "num_key_value_heads"},
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
}
_BOTH: Final[dict[str, Any]] = {
    **{"vocab_size": 131, "d_model": 48, "encoder_layers": 2, "decoder_layers": 2},
    **{"encoder_attention_heads": 6, "decoder_attention_heads": 6, "encoder_ffn_dim": 60},
    **{"decoder_ffn_dim": 60, "max_position_embeddings": 64, "init_std": 0.1},
    **{"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "decoder_start_token_id": 1},
    "forced_eos_token_id": None,
}
_IMAGE: Final[dict[str, Any]] = {
    **{"image_size": 32, "patch_size": 8, "num_channels": 3, "num_labels": 5, "hidden_size": 48},
    **{"intermediate_size": 60, "num_hidden_layers": 2, "num_attention_heads": 6},
    "initializer_range": 0.1,
}
_EXPERTS: Final[dict[str, Any]] = {
    **{"num_experts": 5, "num_local_experts": 5, "n_routed_experts": 4, "moe_num_experts": 5},
    **{"num_experts_per_tok": 2, "moe_intermediate_size": 20, "moe_k": 2},
}
_LATENT: Final[dict[str, Any]] = {
    **_EXPERTS,
    **{"num_experts": 4, "num_local_experts": 4, "num_key_value_heads": 6},
    **{"q_lora_rank": 12, "kv_lora_rank": 10, "qk_rope_head_dim": 4},
    **{"qk_nope_head_dim": 8, "v_head_dim": 6, "n_group": 2, "topk_group": 1},
    **{"first_k_dense_replace": 1, "n_shared_experts": 1},
}
_WINDOW: Final[dict[str, Any]] = {"sliding_window": WINDOW}
_KINDS: Final[dict[str, Any]] = {
    **_WINDOW,
    "layer_types": ["full_attention", "sliding_attention"],
}
_GPT: Final[dict[str, Any]] = {"n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 64}
_STATES: Final[dict[str, Any]] = {
    **{"mamba_d_state": 4, "mamba_n_heads": 6, "mamba_d_head": 16, "mamba_n_groups": 1},
    **{"mamba_num_heads": 6, "mamba_head_dim": 16, "ssm_state_size": 4, "n_groups": 1},
    **{"n_mamba_heads": 2, "mamba_ngroups": 1, "mamba_headdim": 16, "mamba_dt_rank": 4},
}
_DELTA: Final[dict[str, Any]] = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4},
    **{"linear_key_head_dim": 8, "linear_value_head_dim": 8},
}
_STAGES: Final[dict[str, Any]] = {
    **{"num_channels": 3, "num_labels": 5, "image_size": 32, "hidden_sizes": [16, 24]},
    **{"depths": [1, 1], "num_stages": 2, "patch_size": 4, "initializer_range": 0.1},
}
_SWIN: Final[dict[str, Any]] = {
    **{"num_channels": 3, "num_labels": 5, "image_size": 32, "patch_size": 4, "embed_dim": 16},
    **{"depths": [1, 2], "num_heads": [2, 4], "window_size": 4, "initializer_range": 0.1},
}


_SOUND: Final[dict[str, Any]] = {
    **{name: value for name, value in _ENCODER.items() if name != "max_position_embeddings"},
    **{"conv_dim": [16, 16], "conv_stride": [5, 2], "conv_kernel": [10, 3]},
    **{"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4},
    "num_feat_extract_layers": 2,
}
_SPEECH: Final[dict[str, Any]] = {
    **{"d_model": 48, "encoder_layers": 2, "encoder_attention_heads": 6, "encoder_ffn_dim": 60},
    **{"num_mel_bins": 8, "max_source_positions": 20},
}


_TOWER: Final[dict[str, Any]] = {
    **{"model_type": "clip_vision_model", "image_size": 32, "patch_size": 8, "hidden_size": 24},
    **{"intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
}
_SIGLIP: Final = _TOWER | {"model_type": "siglip_vision_model"}
_PIXTRAL: Final = _TOWER | {"model_type": "pixtral"}


_PREPARED: Final = {"image": {"size": {"shortest_edge": 32}}, "sound": {"sampling_rate": 800}}


class Other(NamedTuple):
    """A class of ``transformers`` and what its configuration has."""

    kind: str
    architecture: str
    settings: dict[str, Any]


def _text(name: str, **changes: Any) -> Other:
    return Other("decoder", name, _TEXT | changes)


def _encoder(name: str, **changes: Any) -> Other:
    return Other("encoder", name, _ENCODER | changes)


def _both(name: str, **changes: Any) -> Other:
    return Other("encoder-decoder", name, _BOTH | changes)


def _image(name: str, **changes: Any) -> Other:
    return Other("image", name, _IMAGE | changes)


def _sound(name: str, **changes: Any) -> Other:
    return Other("sound", name, _SOUND | changes)


OTHERS: Final[tuple[Other, ...]] = (
    _text("ApertusForCausalLM"),
    _text("ArceeForCausalLM"),
    _text("BioGptForCausalLM"),
    _text("BitNetForCausalLM"),
    _text("CodeGenForCausalLM", num_attention_heads=4, rotary_dim=8),
    _text("CohereForCausalLM"),
    _text("Cohere2ForCausalLM", sliding_window=WINDOW, sliding_window_pattern=2),
    _text("CTRLLMHeadModel", **_GPT, dff=60),
    _text("CwmForCausalLM", sliding_window=WINDOW, head_dim=8),
    _text(
        "DbrxForCausalLM",
        attn_config={"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        ffn_config={"hidden_size": 48, "ffn_hidden_size": 60, "moe_num_experts": 4, "moe_top_k": 2},
        d_model=48,
        n_heads=6,
        n_layers=2,
    ),
    _text("DeepseekV2ForCausalLM", **_LATENT),
    _text("DeepseekV3ForCausalLM", **_LATENT),
    _text("DiffLlamaForCausalLM"),
    _text("DogeForCausalLM"),
    _text("Dots1ForCausalLM", **_EXPERTS, first_k_dense_replace=1, n_shared_experts=1),
    _text("Ernie4_5ForCausalLM"),
    _text("Ernie4_5_MoeForCausalLM", **_EXPERTS),
    _text("Exaone4ForCausalLM", sliding_window=WINDOW, sliding_window_pattern=2),
    _text("FalconH1ForCausalLM", mamba_d_ssm=48, mamba_n_heads=6, mamba_d_head=8),
    _text("FalconMambaForCausalLM", state_size=4),
    _text("FlexOlmoForCausalLM", **_EXPERTS),
    _text("GlmForCausalLM", head_dim=8, partial_rotary_factor=0.5),
    _text("Glm4ForCausalLM", head_dim=8, partial_rotary_factor=0.5),
    _text("Glm4MoeForCausalLM", **_EXPERTS, head_dim=8, n_group=1, topk_group=1),
    _text("GPTNeoXJapaneseForCausalLM"),
    _text("GPTJForCausalLM", **_GPT, rotary_dim=8),
    _text("GptOssForCausalLM", **_EXPERTS, sliding_window=WINDOW, head_dim=8),
    _text("GraniteForCausalLM", embedding_multiplier=3.0, logits_scaling=2.0),
    _text("GraniteMoeForCausalLM", **_EXPERTS),
    _text("GraniteMoeSharedForCausalLM", **_EXPERTS, shared_intermediate_size=20),
    _text("HeliumForCausalLM", head_dim=8),
    _text("HunYuanDenseV1ForCausalLM", head_dim=8),
    _text("JambaForCausalLM", attn_layer_period=2, attn_layer_offset=1, mamba_d_state=4),
    _text("JetMoeForCausalLM", **_EXPERTS, kv_channels=8),
    _text("Lfm2ForCausalLM", layer_types=["conv", "full_attention"]),
    _text(
        "Llama4ForCausalLM",
        **_EXPERTS,
        head_dim=8,
        intermediate_size_mlp=60,
        attention_chunk_size=8,
        no_rope_layers=[1, 0],
        interleave_moe_layer_step=2,
    ),
    _text("MambaForCausalLM", state_size=4),
    _text("MiniMaxForCausalLM", **_EXPERTS),
    _text("MinistralForCausalLM", sliding_window=WINDOW, head_dim=8),
    _text("ModernBertDecoderForCausalLM", local_attention=2 * WINDOW),
    _text("NanoChatForCausalLM"),
    _text("NemotronForCausalLM", head_dim=8),
    _text("OlmoForCausalLM"),
    _text("Olmo2ForCausalLM"),
    _text("Olmo3ForCausalLM", sliding_window=WINDOW),
    _text("OlmoeForCausalLM", **_EXPERTS),
    _text("OpenAIGPTLMHeadModel", **_GPT),
    _text("PersimmonForCausalLM"),
    _text("PhimoeForCausalLM", **_EXPERTS),
    _text("Qwen3NextForCausalLM", **_EXPERTS, head_dim=8, num_hidden_layers=4),
    _text("RecurrentGemmaForCausalLM", lru_width=48, head_dim=8, num_hidden_layers=3),
    _text("RwkvForCausalLM", context_length=64, attention_hidden_size=48),
    _text("SeedOssForCausalLM", head_dim=8),
    _text("SmolLM3ForCausalLM", no_rope_layer_interval=2),
    _text("Starcoder2ForCausalLM", sliding_window=WINDOW),
    _text("VaultGemmaForCausalLM", sliding_window=WINDOW, head_dim=8),
    _text("XGLMForCausalLM", d_model=48, ffn_dim=60, num_layers=2, attention_heads=6),
    _text("XLNetLMHeadModel", d_inner=60, d_head=8, max_position_embeddings=None),
    _text("BambaForCausalLM", **_STATES, attn_layer_indices=[1]),
    _text(
        "ZambaForCausalLM",
        **(_STATES | {"num_hidden_layers": 4}),
        layers_block_type=["linear_attention", "linear_attention", "hybrid", "hybrid"],
    ),
    _text(
        "Zamba2ForCausalLM",
        **(_STATES | {"n_mamba_heads": 6}),
        layers_block_type=["linear_attention", "hybrid"],
    ),
    _text(
        "GraniteMoeHybridForCausalLM",
        **_STATES,
        **_EXPERTS,
        layer_types=["mamba", "attention"],
        shared_intermediate_size=20,
    ),
    _text("NemotronHForCausalLM", **_STATES, hybrid_override_pattern="M*-", num_hidden_layers=3),
    _text("Lfm2MoeForCausalLM", **_EXPERTS, layer_types=["conv", "full_attention"]),
    _text("OlmoHybridForCausalLM", layer_types=["linear_attention", "full_attention"], **_DELTA),
    _text(
        "KimiLinearForCausalLM",
        **_LATENT,
        layer_types=["linear_attention", "full_attention"],
        linear_head_dim=8,
        linear_num_heads=2,
    ),
    _text("Qwen3_5ForCausalLM", head_dim=8, num_hidden_layers=4, **_DELTA),
    _text("Qwen3_5MoeForCausalLM", **_EXPERTS, head_dim=8, num_hidden_layers=4, **_DELTA),
    _text("xLSTMForCausalLM", num_heads=2, hidden_size=128),
    _text("Gemma4ForCausalLM", head_dim=8, sliding_window=WINDOW),
    _text("HunYuanMoEV1ForCausalLM", **_EXPERTS, head_dim=8),
    _text("MiniMaxM2ForCausalLM", **_EXPERTS, head_dim=8),
    _text("MiniCPM3ForCausalLM", **_LATENT),
    _text("ExaoneMoeForCausalLM", **_EXPERTS, head_dim=8),
    _text("Glm4MoeLiteForCausalLM", **_LATENT),
    _text("DeepseekV32ForCausalLM", **_LATENT),
    _text("LongcatFlashForCausalLM", **_LATENT, head_dim=4, num_layers=2, zero_expert_num=2),
    _text("AfmoeForCausalLM", **_EXPERTS, head_dim=8, sliding_window=WINDOW),
    _text("Ministral3ForCausalLM", head_dim=8),
    _text("Jais2ForCausalLM", head_dim=8),
    _text("SolarOpenForCausalLM", **_EXPERTS, head_dim=8),
    _text("HyperCLOVAXForCausalLM", head_dim=8),
    _text("CamembertForCausalLM", is_decoder=True),
    _text("ElectraForCausalLM", is_decoder=True),
    _text("PegasusForCausalLM", **_BOTH),
    _text("WhisperForCausalLM", **_BOTH),
    _text("BartForCausalLM", **_BOTH),
    _text("BertLMHeadModel", is_decoder=True),
    _text("RobertaForCausalLM", is_decoder=True),
    _text("GraniteSWAForCausalLM", layer_types=["full_attention", "sliding_attention"], **_WINDOW),
    _text("GraniteMoeSWAForCausalLM", **_KINDS, **_EXPERTS),
    _text("HrmTextForCausalLM", head_dim=8, num_layers_per_stack=1, num_key_value_heads=6),
    _text("Lfm3ForCausalLM", **_WINDOW, head_dim=8, layer_types=["conv", "sliding_attention"]),
    _text(
        "ZayaForCausalLM",
        **(_EXPERTS | {"num_experts_per_tok": 1}),
        head_dim=8,
        router_hidden_size=12,
    ),
    _text("YoutuForCausalLM", **_LATENT, head_dim=4),
    _text("MellumForCausalLM", **_EXPERTS, head_dim=8),
    _text(
        "MiMoV2FlashForCausalLM",
        **_KINDS,
        **_EXPERTS,
        # Layers with a window have twice the heads of keys.
        num_attention_heads=8,
        head_dim=12,
        v_head_dim=6,
    ),
    _text("Cohere2MoeForCausalLM", **_KINDS, **_EXPERTS, head_dim=8),
    _text("AXK1ForCausalLM", **_LATENT),
    _text("CpmAntForCausalLM", dim_head=8, dim_ff=60),
    _text("BertGenerationDecoder", is_decoder=True),
    _text("BigBirdForCausalLM", is_decoder=True, attention_type="original_full"),
    _text("BlenderbotForCausalLM", **_BOTH),
    _text("Data2VecTextForCausalLM", is_decoder=True),
    _text("MBartForCausalLM", **_BOTH),
    _text("MarianForCausalLM", **_BOTH),
    _text("PLBartForCausalLM", **_BOTH),
    _text("MegatronBertForCausalLM", is_decoder=True),
    _text("RemBertForCausalLM", is_decoder=True, input_embedding_size=24),
    _text("RoCBertForCausalLM", is_decoder=True, enable_shape=False, enable_pronunciation=False),
    _text("RoFormerForCausalLM", is_decoder=True, embedding_size=48),
    _text("RobertaPreLayerNormForCausalLM", is_decoder=True),
    _text("TrOCRForCausalLM", **_BOTH),
    _text("XLMRobertaForCausalLM", is_decoder=True),
    _text("XLMRobertaXLForCausalLM", is_decoder=True),
    _text("XmodForCausalLM", is_decoder=True, languages=["en_XX"], default_language="en_XX"),
    _text("ErnieForCausalLM", is_decoder=True),
    _encoder("AlbertModel", embedding_size=24),
    _encoder("AlbertForSequenceClassification", embedding_size=24, num_labels=5),
    _encoder("BertForMaskedLM"),
    _encoder("BertForTokenClassification", num_labels=5),
    _encoder("BertForQuestionAnswering"),
    _encoder("RobertaForQuestionAnswering"),
    _encoder("BigBirdModel", attention_type="original_full"),
    _encoder("CamembertModel"),
    _encoder("CLIPTextModel", projection_dim=20),
    _encoder("ConvBertModel", embedding_size=24),
    _encoder("DebertaModel", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    _encoder("DebertaV2Model", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    _encoder("ElectraModel", embedding_size=24),
    _encoder("ErnieModel"),
    _encoder("EsmModel", position_embedding_type="rotary", mask_token_id=3),
    _encoder("EuroBertModel", num_key_value_heads=2),
    _encoder("FNetModel"),
    _encoder("FunnelModel", d_head=8, d_inner=60, block_sizes=[1, 1], num_hidden_layers=None),
    _encoder("IBertModel"),
    _encoder("LayoutLMModel"),
    _encoder("LongformerModel", attention_window=8),
    _encoder("MegatronBertModel"),
    _encoder("MobileBertModel", embedding_size=24, intra_bottleneck_size=24),
    _encoder("ModernBertModel", local_attention=8, global_attn_every_n_layers=2),
    _encoder("MPNetModel"),
    _encoder("NomicBertModel"),
    _encoder("NystromformerModel", num_landmarks=4, segment_means_seq_len=32),
    _encoder("RemBertModel", input_embedding_size=24),
    _encoder("RobertaModel"),
    _encoder("RobertaForSequenceClassification", num_labels=5),
    _encoder("RobertaForMaskedLM"),
    _encoder("RoFormerModel", embedding_size=48),
    _encoder("SiglipTextModel"),
    _encoder("SqueezeBertModel", embedding_size=48),
    _encoder("T5EncoderModel", d_model=48, d_kv=8, d_ff=60, num_layers=2, num_heads=6),
    _encoder("XLMModel", emb_dim=48, n_layers=2, n_heads=6),
    _encoder("XLMRobertaModel"),
    _encoder("Qwen3Model", num_key_value_heads=2, head_dim=8),
    _encoder("LlamaForSequenceClassification", num_key_value_heads=2, num_labels=5),
    _encoder("BertForSequenceClassification", num_labels=5, problem_type="regression"),
    _encoder("BertForMultipleChoice"),
    _encoder("BertGenerationEncoder"),
    _encoder("CanineModel"),
    _encoder("ClapTextModel"),
    _encoder("Data2VecTextModel"),
    _encoder("DPRQuestionEncoder"),
    _encoder("FlaubertModel", emb_dim=48, n_layers=2, n_heads=6),
    _encoder("JinaEmbeddingsV3Model"),
    _encoder("LiltModel", channel_shrink_ratio=2),
    _encoder("LukeModel", entity_vocab_size=20, entity_emb_size=12),
    _encoder("MarkupLMModel"),
    _encoder("MraModel"),
    _encoder("RoCBertModel", enable_shape=False, enable_pronunciation=False),
    _encoder("RobertaPreLayerNormModel"),
    _encoder("SplinterModel"),
    _encoder("XLMRobertaXLModel"),
    _encoder("XmodModel", languages=["en_XX"], default_language="en_XX"),
    _encoder("YosoModel"),
    _encoder("UltrabertModel"),
    _encoder("GteModel"),
    _encoder("NeoMMEModel", num_key_value_heads=2),
    _encoder("ElectraForTokenClassification", embedding_size=24, num_labels=5),
    _encoder("DebertaV2ForSequenceClassification", num_labels=5),
    _encoder("ModernBertForSequenceClassification", num_labels=5, local_attention=8),
    _encoder("DistilBertForMaskedLM", dim=48, n_layers=2, n_heads=6, hidden_dim=60),
    _encoder("MPNetForMaskedLM"),
    _encoder("GPT2ForSequenceClassification", **_GPT, num_labels=5),
    _both("BartForConditionalGeneration"),
    _both("BlenderbotForConditionalGeneration"),
    _both("LongT5ForConditionalGeneration", d_kv=8, d_ff=60, num_layers=2, num_heads=6),
    _both("M2M100ForConditionalGeneration"),
    _both("MarianMTModel", decoder_start_token_id=2),
    _both("MBartForConditionalGeneration"),
    _both("MT5ForConditionalGeneration", d_kv=8, d_ff=60, num_layers=2, num_heads=6),
    _both("PegasusForConditionalGeneration"),
    _both("PLBartForConditionalGeneration"),
    _both(
        "SwitchTransformersForConditionalGeneration",
        d_kv=8,
        d_ff=60,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=6,
        num_experts=4,
        expert_capacity=16,
    ),
    Other(
        "encoder-decoder",
        "T5GemmaForConditionalGeneration",
        {
            "vocab_size": 131,
            "encoder": _TEXT | _WINDOW | {"head_dim": 8},
            "decoder": _TEXT | _WINDOW | {"head_dim": 8, "cross_attention_hidden_size": 48},
        },
    ),
    _both("UMT5ForConditionalGeneration", d_kv=8, d_ff=60, num_layers=2, num_heads=6),
    _both("BlenderbotSmallForConditionalGeneration"),
    _both("LEDForConditionalGeneration", attention_window=8, max_encoder_position_embeddings=64),
    _both("MvpForConditionalGeneration"),
    _both("NllbMoeForConditionalGeneration", num_experts=4, expert_capacity=16),
    _both("PegasusXForConditionalGeneration", block_size=8, num_global_tokens=4),
    _both("FSMTForConditionalGeneration", src_vocab_size=131, tgt_vocab_size=131),
    _both("BigBirdPegasusForConditionalGeneration", attention_type="original_full"),
    _image("BeitForImageClassification"),
    _image("CLIPVisionModel", projection_dim=20),
    Other("image", "ConvNextForImageClassification", _STAGES),
    Other("image", "ConvNextV2ForImageClassification", _STAGES),
    _image("DeiTForImageClassification"),
    _image("Dinov2ForImageClassification"),
    _image("EfficientNetForImageClassification", depth_coefficient=0.2),
    Other("image", "FocalNetForImageClassification", _SWIN | {"focal_levels": [1, 1]}),
    _image("MobileNetV1ForImageClassification", depth_multiplier=0.25),
    _image("MobileNetV2ForImageClassification", depth_multiplier=0.25),
    _image(
        "MobileViTForImageClassification",
        num_attention_heads=4,
        hidden_sizes=[16, 24, 32],
        patch_size=2,
    ),
    Other("image", "RegNetForImageClassification", {**_STAGES, "groups_width": 8}),
    Other(
        "image",
        "ResNetForImageClassification",
        {**_STAGES, "embedding_size": 16, "image_size": None},
    ),
    _image(
        "SegformerForImageClassification",
        hidden_size=None,
        num_attention_heads=[1, 2, 2, 4],
        hidden_sizes=[16, 16, 16, 16],
        depths=[1, 1, 1, 1],
    ),
    Other("image", "SwinForImageClassification", _SWIN),
    Other("image", "Swinv2ForImageClassification", _SWIN),
    _image("SiglipVisionModel"),
    _image("ViTModel"),
    _image("ViTMSNForImageClassification"),
    Other(
        "image",
        "BitForImageClassification",
        {**_STAGES, "embedding_size": 16, "num_groups": 8, "hidden_sizes": [32, 64]},
    ),
    _image("CLIPForImageClassification"),
    Other("image", "CvtForImageClassification", {"num_channels": 3, "num_labels": 5}),
    _image("Data2VecVisionForImageClassification"),
    _image("DeiTForImageClassificationWithTeacher"),
    _image("Dinov2WithRegistersForImageClassification"),
    _image("DINOv3ViTModel"),
    Other("image", "DINOv3ConvNextModel", {"hidden_sizes": [16] * 4, "depths": [1] * 4}),
    Other("image", "DonutSwinModel", _SWIN),
    Other("image", "HGNetV2ForImageClassification", {"num_labels": 5}),
    _image("IJepaForImageClassification"),
    Other("image", "LevitForImageClassification", {"image_size": 64, "num_labels": 5}),
    _image("MobileViTV2ForImageClassification", width_multiplier=0.25, image_size=64, patch_size=2),
    Other(
        "image",
        "PoolFormerForImageClassification",
        {"num_labels": 5, "hidden_sizes": [16, 16, 24, 24]},
    ),
    Other("image", "PvtForImageClassification", {"image_size": 64, "num_labels": 5}),
    Other("image", "PvtV2ForImageClassification", {"image_size": 64, "num_labels": 5}),
    _image("SiglipForImageClassification"),
    Other("image", "SwiftFormerForImageClassification", {"num_labels": 5, "image_size": 64}),
    Other("image", "TextNetForImageClassification", {"num_labels": 5, "image_size": 64}),
    _image("PixioModel"),
    _image("VivitModel"),
    _image("ViTMAEModel"),
    _image("YolosModel", image_size=[32, 32]),
    Other("image", "GLPNModel", {"num_labels": 5}),
    _image("Siglip2VisionModel"),
    _image("DPTModel"),
    _image("VitDetModel"),
    _sound("ASTForAudioClassification", num_mel_bins=16, max_length=32, patch_size=8),
    _sound("Data2VecAudioForCTC"),
    _sound("HubertForCTC"),
    _sound("HubertForSequenceClassification", num_labels=5, classifier_proj_size=12),
    _sound("HubertModel", feat_extract_norm="layer", do_stable_layer_norm=True),
    _sound("ParakeetForCTC"),
    _sound("SEWForCTC", squeeze_factor=2),
    _sound("UniSpeechForCTC"),
    _sound("UniSpeechSatForCTC"),
    _sound("Wav2Vec2BertForCTC", feature_projection_input_dim=16),
    _sound("Wav2Vec2ConformerForCTC", position_embeddings_type="rotary"),
    _sound("Wav2Vec2ForCTC"),
    _sound("Wav2Vec2ForSequenceClassification", num_labels=5, classifier_proj_size=12),
    _sound("Wav2Vec2Model"),
    _sound("WavLMForCTC"),
    _sound("WhisperForAudioClassification", **_SPEECH, num_labels=5, classifier_proj_size=12),
    _sound("EncodecModel"),
    Other(
        "two inputs",
        "CLIPModel",
        {
            "text_config": _ENCODER | {"model_type": "clip_text_model", "projection_dim": 20},
            "vision_config": _TOWER | {"projection_dim": 20},
            "projection_dim": 20,
        },
    ),
    *(
        Other("text beside images", name, {"text_config": {**_TEXT, "model_type": kind}, **more})
        for name, kind, more in (
            ("LlavaForConditionalGeneration", "llama", {"vision_config": _TOWER}),
            ("Gemma3ForConditionalGeneration", "gemma3_text", {"vision_config": _SIGLIP}),
            ("Mistral3ForConditionalGeneration", "mistral", {"vision_config": _PIXTRAL}),
            ("PaliGemmaForConditionalGeneration", "gemma", {"vision_config": _SIGLIP}),
            ("LlavaOnevisionForConditionalGeneration", "qwen2", {"vision_config": _SIGLIP}),
            ("Idefics3ForConditionalGeneration", "llama", {}),
            ("SmolVLMForConditionalGeneration", "llama", {}),
            ("InternVLForConditionalGeneration", "qwen2", {}),
        )
    ),
    Other(
        "text beside images",
        "Gemma4ForConditionalGeneration",
        {
            "text_config": _TEXT
            | {"model_type": "gemma4_text", "head_dim": 8, "vocab_size_per_layer_input": 131},
            "vision_config": {
                **{"model_type": "gemma4_vision", "hidden_size": 16, "intermediate_size": 32},
                **{"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2},
                **{"head_dim": 8, "patch_size": 4, "position_embedding_size": 64},
            },
            # The bounds of its products are infinite.
            "audio_config": {
                **{"model_type": "gemma4_audio", "hidden_size": 16, "num_hidden_layers": 1},
                **{"num_attention_heads": 2, "output_proj_dims": 16},
                "subsampling_conv_channels": [4, 4],
            },
        },
    ),
    _image(
        "DPTForDepthEstimation",
        # With smaller weights its last ReLU gives zeros alone.
        initializer_range=0.15,
        num_hidden_layers=4,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=8,
    ),
    Other("image", "SegformerForSemanticSegmentation", {"num_labels": 5}),
    Other("image", "GLPNForDepthEstimation", {}),
    _image("BeitForSemanticSegmentation", num_hidden_layers=4, out_indices=[1, 2, 3, 4]),
    _image("YolosForObjectDetection", image_size=[32, 32], num_detection_tokens=6),
    Other("image", "MobileViTForSemanticSegmentation", {"image_size": 32}),
    Other(
        "image",
        "Swin2SRForImageSuperResolution",
        {"image_size": 32, "depths": [2], "num_heads": [2], "embed_dim": 16},
    ),
    Other(
        "image",
        "ResNetBackbone",
        _STAGES | {"embedding_size": 8, "out_features": ["stage1", "stage2"]},
    ),
    _image("ViTForMaskedImageModeling"),
    _sound("Wav2Vec2ForAudioFrameClassification", num_labels=5),
    _sound(
        "WavLMForXVector",
        num_labels=5,
        tdnn_dim=[16, 16],
        tdnn_kernel=[3, 1],
        tdnn_dilation=[1, 1],
        xvector_output_dim=12,
    ),
    Other(
        "several inputs",
        "InformerForPrediction",
        {
            **{"prediction_length": 4, "context_length": 8, "d_model": 16},
            **{"lags_sequence": [1, 2], "num_time_features": 1},
        },
    ),
    Other(
        "several inputs",
        "PerceiverForMaskedLM",
        {
            **{"num_latents": 6, "d_latents": 16, "d_model": 16, "qk_channels": 16},
            **{"v_channels": 16, "num_self_attends_per_block": 1, "vocab_size": 131},
            **{"num_self_attention_heads": 2, "num_cross_attention_heads": 2},
            "max_position_embeddings": 40,
        },
    ),
    Other(
        "image",
        "RTDetrV2ForObjectDetection",
        {
            "backbone_config": {
                **{"model_type": "rt_detr_resnet", "embedding_size": 8, "layer_type": "basic"},
                **{"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]},
                "out_features": ["stage2", "stage3", "stage4"],
            },
            **{"encoder_hidden_dim": 32, "encoder_in_channels": [16, 24, 32], "num_queries": 6},
            **{"encoder_layers": 1, "encoder_ffn_dim": 32, "encoder_attention_heads": 2},
            **{"decoder_layers": 2, "decoder_ffn_dim": 32, "decoder_attention_heads": 2},
            **{"d_model": 32, "decoder_in_channels": [32, 32, 32], "decoder_n_points": 2},
            "num_labels": 5,
        },
    ),
)


def make_other(path: Path, other: Other) -> Path:
    """Write the folder of a class without a file, and what prepares its images."""
    model_class = getattr(transformers, other.architecture)
    settings = {name: value for name, value in other.settings.items() if value is not None}
    torch.manual_seed(0)
    module = model_class(model_class.config_class(**settings))
    with torch.no_grad():
        for name, value in module.named_parameters():
            # Norm weights start as ones and biases as zeros, which would hide mistakes.
            if value.dim() == 1:
                value.add_(torch.randn_like(value) * (0.2 if "norm" in name.lower() else 0.05))
    module.save_pretrained(path)
    if other.kind in _PREPARED:
        (path / "preprocessor_config.json").write_text(json.dumps(_PREPARED[other.kind]))
    return path


_ONE_KEY: Final[dict[str, Any]] = {"num_key_value_heads": 1}
_ONE_HEAD: Final[dict[str, Any]] = {"num_attention_heads": 1, "num_key_value_heads": 1}
_TIED: Final[dict[str, Any]] = {"tie_word_embeddings": True}
_UNTIED: Final[dict[str, Any]] = {"tie_word_embeddings": False}
_ONE_TIED: Final[dict[str, Any]] = {"num_hidden_layers": 1, "tie_word_embeddings": True}
_LONGROPE: Final[dict[str, Any]] = {
    **{"rope_type": "longrope", "original_max_position_embeddings": 32},
    "short_factor": [1.0, 1.0, 1.1, 1.1, 1.2, 1.2],
    "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
}
# Of families that have a file: what a folder may say that the samples do not.
UNUSUAL: Final[tuple[tuple[str, str, dict[str, Any]], ...]] = (
    ("llama", "heads of another size than hidden / heads", {"head_dim": 20}),
    ("llama", "one key and value head", {"num_key_value_heads": 1}),
    ("llama", "tied embeddings", {"tie_word_embeddings": True}),
    ("llama", "biases everywhere", {"attention_bias": True, "mlp_bias": True}),
    ("llama", "one layer", {"num_hidden_layers": 1}),
    ("llama", "a vocabulary of 3", {"vocab_size": 3, "eos_token_id": 2}),
    ("llama", "a vocabulary of 50257", {"vocab_size": 50257}),
    ("llama", "a head of 2", {"head_dim": 2}),
    ("llama", "GELU", {"hidden_act": "gelu"}),
    ("llama", "a wide head and one of keys", {"head_dim": 20, "num_key_value_heads": 1}),
    ("llama", "a prime vocabulary, tied, in one layer", {"vocab_size": 127, **_ONE_TIED}),
    ("mistral", "a window beyond the context", {"sliding_window": 4096}),
    ("mistral", "a window of one, one head of keys", {"sliding_window": 1, **_ONE_KEY}),
    ("phi3", "rotary scaling longrope", {"rope_scaling": _LONGROPE}),
    ("phi3", "a window of two", {"sliding_window": 2}),
    ("qwen2", "tied embeddings", {"tie_word_embeddings": True}),
    ("qwen3", "heads of another size, one of keys", {"head_dim": 20, **_ONE_KEY}),
    ("gemma", "one head of keys", _ONE_KEY),
    ("gemma2", "no softcaps", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    ("gemma2", "a window of one", {"sliding_window": 1}),
    ("gpt2", "a head of its own", {"tie_word_embeddings": False}),
    ("gpt_neox", "tied embeddings", {"tie_word_embeddings": True}),
    ("gpt_neox", "no biases of attention", {"attention_bias": False}),
    ("opt", "no biases", {"enable_bias": False}),
    ("falcon", "biases", {"bias": True}),
    (
        "stablelm",
        "a third of each head rotates, one of keys",
        {"partial_rotary_factor": 1 / 3, **_ONE_KEY},
    ),
    ("mixtral", "no window", {"sliding_window": None}),
    ("mixtral", "every expert", {"num_experts_per_tok": 5}),
    ("llama", "ReLU squared", {"hidden_act": "relu2"}),
    *(
        ("llama", f"rotary scaling {kind['rope_type']}", {"rope_scaling": kind})
        for kind in (
            {"rope_type": "linear", "factor": 2.0},
            {"rope_type": "dynamic", "factor": 2.0},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        )
    ),
    ("qwen2", "a window from layer 3 of 4", {"num_hidden_layers": 4, "max_window_layers": 2}),
    ("qwen2", "a window in no layer", {"use_sliding_window": False}),
    ("gemma2", "three layers of two kinds", {"num_hidden_layers": 3}),
    (
        "gemma3",
        "a full layer after five of a window",
        {"num_hidden_layers": 6, "layer_types": ["sliding_attention"] * 5 + ["full_attention"]},
    ),
    (
        "gemma3",
        "positions scaled by the kind of layer",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "dynamic", "factor": 2.0},
                "sliding_attention": {"rope_type": "linear", "factor": 2.0},
            }
        },
    ),
    (
        "jetmoe",
        "one expert of five, one head, untied",
        {
            **{"num_experts_per_tok": 1, "num_key_value_heads": 1},
            **_UNTIED,
        },
    ),
    ("mistral", "no window", {"sliding_window": None}),
    ("mistral", "a window of one", {"sliding_window": 1}),
    ("phi", "a quarter of each head rotates", {"partial_rotary_factor": 0.25, "head_dim": 16}),
    ("phi", "normalised queries and keys", {"qk_layernorm": True}),
    ("phi3", "three quarters of each head rotate", {"partial_rotary_factor": 0.75}),
    (
        "stablelm",
        "biases, normalised heads, parallel",
        {
            "use_qkv_bias": True,
            "qk_layernorm": True,
            "use_parallel_residual": True,
        },
    ),
    ("gpt_neox", "no parallel residual", {"use_parallel_residual": False}),
    ("gpt_neox", "a whole head rotates", {"rotary_pct": 1.0}),
    ("gpt2", "key and value heads that the class never reads", {"num_key_value_heads": 2}),
    ("gpt2", "scores scaled by the layer", {"scale_attn_by_inverse_layer_idx": True}),
    ("gpt_bigcode", "a head for each query", {"multi_query": False}),
    ("falcon", "ALiBi", {"alibi": True}),
    ("falcon", "the newer architecture", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    (
        "falcon",
        "the newer one with ALiBi",
        {
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "alibi": True,
        },
    ),
    (
        "falcon",
        "1B: ALiBi, all heads, in turn",
        {"alibi": True, "multi_query": False, "parallel_attn": False},
    ),
    ("falcon", "no parallel attention", {"parallel_attn": False}),
    ("bloom", "five heads: slopes between powers of 2", {"n_head": 5, "hidden_size": 60}),
    ("baichuan", "13B: ALiBi", {"alibi": True}),
    (
        "baichuan",
        "13B with five heads",
        {
            "alibi": True,
            "num_attention_heads": 5,
            "hidden_size": 60,
        },
    ),
    ("opt", "norms after", {"do_layer_norm_before": False}),
    ("opt", "embeddings of another width", {"word_embed_proj_dim": 40}),
    ("mixtral", "one expert for a token", {"num_experts_per_tok": 1}),
    ("qwen2_moe", "a dense layer between", {"decoder_sparse_step": 2}),
    ("qwen3_moe", "normalised weights of experts", {"norm_topk_prob": True}),
    ("mpt", "clipped projections", {"attn_config": {"clip_qkv": 0.5}}),
    ("mpt", "five heads", {"n_heads": 5, "d_model": 60}),
    ("gpt_neo", "layers with a window alone", {"attention_types": [[["local"], 2]]}),
    ("mamba2", "one group", {"n_groups": 1}),
    ("rwkv6", "one layer", {"num_hidden_layers": 1}),
    ("bert", "ReLU", {"hidden_act": "relu"}),
    ("vit", "images that are no square", {"image_size": (24, 16)}),
    (
        "t5",
        "gated GELU and a head of its own",
        {
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
        },
    ),
    ("t5", "as many decoder layers", {"num_decoder_layers": 2}),
    ("whisper", "more decoder layers", {"decoder_layers": 3}),
    ("llama", "one head, an odd vocabulary", {**_ONE_HEAD, "vocab_size": 257}),
    ("qwen3", "one head, tied, an odd vocabulary", {**_ONE_HEAD, **_TIED, "vocab_size": 259}),
    ("gemma3", "one head, a window of one", {**_ONE_HEAD, "sliding_window": 1}),
    ("gemma3", "a window in no layer", {"layer_types": ["full_attention"] * 2}),
    (
        "mixtral",
        "a window of one, two experts, one for a token",
        {"sliding_window": 1, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
    ("gpt_neo", "a window of one", {"window_size": 1}),
    ("qwen2", "a window of one in every layer", {"sliding_window": 1, "max_window_layers": 0}),
    ("qwen2_moe", "one expert", {"num_experts": 1, "num_experts_per_tok": 1}),
    ("gpt2", "one head, an odd vocabulary", {"n_head": 1, "vocab_size": 257}),
    ("gpt_bigcode", "one head, tied", {"n_head": 1, **_TIED}),
    ("gpt_neox", "one head, an odd vocabulary", {"num_attention_heads": 1, "vocab_size": 257}),
    ("bloom", "one head", {"n_head": 1}),
    ("mpt", "one head", {"n_heads": 1}),
    ("opt", "one head, and a head of its own", {"num_attention_heads": 1, **_UNTIED}),
    ("phi", "one head, tied", {**_ONE_HEAD, **_TIED}),
    ("phi3", "one head, an odd vocabulary", {**_ONE_HEAD, "vocab_size": 257}),
    ("stablelm", "one head, tied", {**_ONE_HEAD, **_TIED}),
    ("falcon", "one head, tied", {"num_attention_heads": 1, **_TIED}),
    ("rwkv4", "tied embeddings", _TIED),
    ("rwkv5", "one head", {"head_size": 72}),
    ("rwkv6", "one head, an odd vocabulary", {"head_size": 72, "vocab_size": 257}),
    ("mamba2", "biases but of the convolution", {"use_bias": True, "use_conv_bias": False}),
    ("mamba2", "one head", {"num_heads": 1, "head_dim": 144, "n_groups": 1}),
    ("minimax", "tied, one expert for a token", {"num_experts_per_tok": 1, **_TIED}),
    ("xlstm", "one head", {"num_heads": 1}),
    ("bert", "one head, one kind of tokens", {"num_attention_heads": 1, "type_vocab_size": 1}),
    ("distilbert", "one head, sinusoidal", {"n_heads": 1, "sinusoidal_pos_embds": True}),
    (
        "bart",
        "one head, scaled embeddings",
        {"encoder_attention_heads": 1, "decoder_attention_heads": 1, "scale_embedding": True},
    ),
    ("t5", "one head, seven buckets", {"num_heads": 1, "relative_attention_num_buckets": 7}),
    ("vit", "one head, no biases", {"num_attention_heads": 1, "qkv_bias": False}),
    (
        "whisper",
        "one head, an odd vocabulary",
        {"encoder_attention_heads": 1, "decoder_attention_heads": 1, "vocab_size": 257},
    ),
)


def make_unusual(path: Path, family: str, settings: dict[str, Any]) -> Path:
    """Write the folder of a known family with unusual settings; None is written as null."""
    make_family(path, family, **settings)
    config = path / "config.json"
    absent = {name: None for name, value in settings.items() if value is None}
    config.write_text(json.dumps(json.loads(config.read_text()) | absent))
    return path
