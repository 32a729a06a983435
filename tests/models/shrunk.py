"""Tiny seeded models of any class of transformers: its configuration's defaults, with small sizes.

What a key is follows from its name and its default. Few classes need settings of their own.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
import transformers

WIDTH, HEADS, KV_HEADS, HEAD, INNER, LAYERS, VOCABULARY, POSITIONS = 48, 6, 2, 8, 60, 2, 131, 64
EXPERTS, CHOSEN, IMAGE, PATCH, BINS = 4, 2, 32, 8, 8
LARGEST: Final = 60_000_000
# Names as whole words of a regular expression, what they become; the first that fits is taken.
_INTEGERS: Final[tuple[tuple[str, int], ...]] = (
    (r"(\w*_)?vocab_size(_\w+)?|vocab_size_per_layer_input", VOCABULARY),
    (r"num_hidden_layers|n_layers?|num_layers|depth|(\w+_)?(encoder|decoder)_layers", LAYERS),
    (r"num_(encoder|decoder|transformer|block|q?former|temporal|spatial)_?\w*layers", LAYERS),
    (r"(\w+_)?num_(hidden_)?layers", LAYERS),
    (r"num_(key_value|kv|query)_(heads|groups)|num_kv_heads|n_kv_heads?|multi_query_group_num",
     KV_HEADS),
    (r"(\w+_)?(num_)?attention_heads|num_heads|n_heads?|num_attention_heads\w*", HEADS),
    (r"(\w+_)?head_dim|d_kv|d_head|head_size|attention_head_dim", HEAD),
    (r"(\w+_)?(moe|expert|shared)\w*intermediate_size|moe_\w*ffn\w*", 20),
    (r"\w*intermediate_size\w*|(\w+_)?(ffn|ff|mlp)_(hidden_)?(dim|size)|d_ff|dff|n_inner|d_inner"
     r"|\w*feedforward\w*|fc_dim|\w*linear_units", INNER),
    (r"hidden_size|d_model|n_embd|dim|emb_dim|embed_dim|embedding_size|\w*projection_dim"
     r"|(\w+_)?hidden_(size|dim)|\w*encoder_hidden_size|decoder_dim|model_dim|proj_size", WIDTH),
    (r"\w*num_(local_|routed_)?experts|n_routed_experts|moe_num_experts", EXPERTS),
    (r"\w*experts_per_tok(en)?|moe_k|moe_top_?k", CHOSEN),
    (r"n_shared_experts|num_shared_experts", 1),
    (r"n_group|topk_group", 1),
    (r"max_position_embeddings|n_positions|max_target_positions|max_seq_len\w*", POSITIONS),
    (r"q_lora_rank|kv_lora_rank|o_lora_rank", 12),
    (r"qk_rope_head_dim|rotary_dim", 4),
    (r"image_size|img_size|input_size", IMAGE),
    (r"patch_size", PATCH),
    (r"num_mel_bins|num_mel_channels|input_feat_per_channel", BINS),
    (r"sliding_window|window_size|attention_chunk_size", 9),
    (r"num_queries|num_detection_tokens|num_query_tokens", 6),
    (r"num_latents", 6),
)  # fmt: skip
# Some classes compute with what their configurations leave open.
_ABSENT: Final = ("head_dim", "num_key_value_heads")
_EVEN: Final = {WIDTH: 64, HEADS: 4, KV_HEADS: 4, HEAD: 16, INNER: 64}
_LATENT: Final = {"qk_nope_head_dim": 8, "v_head_dim": 6, "qk_head_dim": 12}
_SETTINGS: Final[dict[str, dict[str, Any]]] = {
    **dict.fromkeys(("Deepseek", "AXK", "Glm4MoeLite", "GlmMoeDsa", "MiniCPM3", "Youtu"), _LATENT),
    **dict.fromkeys(("Mistral4", "MistralLarge4", "Longcat", "KimiLinear", "Kimi_K25"), _LATENT),
    "Esm": {"vocab_size": VOCABULARY, "mask_token_id": 3, "position_embedding_type": "rotary"},
    "Xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "LayoutLMv2": {"has_visual_segment_embedding": False},
}
_TOKENS: Final = re.compile(r"\w*_token_(id|index|ids)|\w*_(bos|eos|pad)_(token_)?id")


def variants(name: str) -> Iterator[tuple[str, Any]]:
    """Configurations of a class from the smallest on, each with what is small in it."""
    from tests.models.other_models import OTHERS

    config_class = getattr(transformers, name).config_class
    for other in OTHERS:
        if other.architecture == name:
            settings = {key: value for key, value in other.settings.items() if value is not None}
            yield "its sample", config_class(**settings)
    layers = tuple(each for each in _INTEGERS if each[1] in (LAYERS, VOCABULARY, EXPERTS))
    for what, rules in (
        ("all sizes", _INTEGERS),
        ("all sizes, heads of keys as of queries", _with({KV_HEADS: HEADS}, _INTEGERS)),
        ("all sizes, even", _with(_EVEN, _INTEGERS)),
        ("layers", layers),
        ("nothing", ()),
    ):
        try:
            settings = _settings_of(name, config_class)
            config = _made(config_class(**settings), rules, settings)
            _settled(config, name)
        except Exception:
            continue
        yield what, config


def _with(
    changes: Mapping[int, int], rules: tuple[tuple[str, int], ...]
) -> tuple[tuple[str, int], ...]:
    return tuple((name, changes.get(to, to)) for name, to in rules)


def _settings_of(name: str, config_class: Any) -> dict[str, Any]:
    """What no rule gives."""
    found: dict[str, Any] = {}
    for prefix, settings in _SETTINGS.items():
        if name.startswith(prefix):
            found |= settings
    if "backbone_config" in getattr(config_class, "sub_configs", {}):
        default = type(getattr(config_class(), "backbone_config", None)).__name__
        if default in ("NoneType", "TimmBackboneConfig", "ResNetConfig"):
            stages = ["stage2", "stage3", "stage4"]
            found["backbone_config"] = transformers.ResNetConfig(
                embedding_size=8, hidden_sizes=[16] * 4, depths=[1] * 4, out_features=stages
            )
        elif default == "SwinConfig":
            found["backbone_config"] = transformers.SwinConfig(
                embed_dim=8, depths=[1] * 4, num_heads=[1, 1, 2, 2], window_size=4,
                out_features=["stage1", "stage2", "stage3", "stage4"],
            )  # fmt: skip
    return found


def make_shrunk(path: Path, name: str, config: Any) -> Path:
    """Write the folder of a class with a configuration of :func:`variants`.

    Raises
    ------
    ValueError
        If it has too many parameters to be tiny.
    """
    model_class = getattr(transformers, name)
    with torch.device("meta"):
        count = sum(each.numel() for each in model_class(config).parameters())
    if count > LARGEST:
        raise ValueError(f"{count:,} parameters")
    torch.manual_seed(0)
    module = model_class(config)
    with torch.no_grad():
        for key, value in module.named_parameters():
            if value.dim() == 1:
                value.add_(torch.randn_like(value) * (0.2 if "norm" in key.lower() else 0.05))
    module.save_pretrained(path)
    prepared = {"size": {"shortest_edge": IMAGE}, "sampling_rate": 8000}
    (path / "preprocessor_config.json").write_text(json.dumps(prepared))
    return path


def _made(
    config: Any, rules: tuple[tuple[str, int], ...], settings: Mapping[str, Any] | None = None
) -> Any:
    """The same class of configuration with small numbers, and with `settings`."""
    changes: dict[str, Any] = dict(settings or {})
    free = iter(range(VOCABULARY - 2, 2, -1))
    vocabulary = any(limit == VOCABULARY for _, limit in rules)
    for key, value in config.to_dict().items():
        own = getattr(config, key, None)
        if isinstance(own, transformers.PretrainedConfig):
            changes[key] = _made(own, rules).to_dict()
        elif isinstance(value, bool) or key.startswith("_"):
            continue
        elif isinstance(value, int) and _TOKENS.fullmatch(key):
            if vocabulary and value >= VOCABULARY:
                changes[key] = next(free)
        elif isinstance(value, int):
            fit = next((to for name, to in rules if re.fullmatch(name, key)), None)
            if fit is not None and value > fit:
                changes[key] = fit
        elif value is None and key in _ABSENT and rules and rules is not _INTEGERS:
            changes[key] = next((to for name, to in rules if re.fullmatch(name, key)), None)
    if len(rules) == len(_INTEGERS):
        changes |= dict(_lists(config, changes))
    elif len(rules) < len(_INTEGERS):
        changes |= dict(_layer_kinds(config, changes))
    if not changes:
        return config
    kept = {
        name: getattr(config, name)
        for name in getattr(config, "sub_configs", {})
        if name not in changes and getattr(config, name, None) is not None
    }
    return type(config)(**kept, **changes)


def _layer_kinds(config: Any, changes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    kinds = getattr(config, "layer_types", None)
    if isinstance(kinds, list) and kinds:
        count = next((changes[each] for each in changes if each.endswith("hidden_layers")), None)
        chosen = [*dict.fromkeys(kinds)]
        if count is not None:
            yield "layer_types", (chosen * count)[: max(count, len(chosen))]
            if len(chosen) > count:
                yield "num_hidden_layers", len(chosen)


def _lists(config: Any, changes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a size for each stage becomes."""
    yield from _layer_kinds(config, changes)
    for key, value in config.to_dict().items():
        whole = isinstance(value, list | tuple) and value and all(type(e) is int for e in value)
        if not whole:
            continue
        if key in ("depths", "num_blocks", "layers", "stage_depths"):
            yield key, [1] * len(value)
        elif key in ("hidden_sizes", "embed_dims", "encoder_hidden_sizes", "neck_hidden_sizes"):
            yield key, [min(each, 16 * (at + 1)) for at, each in enumerate(value)]
        elif key in ("num_attention_heads", "num_heads", "encoder_num_heads"):
            yield key, [min(each, 2) for each in value]
        elif key in ("image_size", "img_size"):
            yield key, [IMAGE] * len(value)
        elif key in ("conv_dim", "tdnn_dim"):
            yield key, [16] * len(value)


def _settled(config: Any, name: str) -> None:
    """What a task asks of a configuration."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    causal = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    decodes = any(name == each or (isinstance(each, tuple) and name in each) for each in causal)
    if decodes and hasattr(config, "is_decoder") and not config.is_encoder_decoder:
        config.is_decoder = True
    module = sys.modules[getattr(transformers, name).__module__]
    sections = "mrope_section" in inspect.getsource(module)
    for part in _parts(config):
        if getattr(part, "pad_token_id", None) is None and hasattr(part, "vocab_size"):
            part.pad_token_id = 2
        rope = getattr(part, "rope_parameters", None)
        if isinstance(rope, dict) and sections and hasattr(part, "vocab_size"):
            size = getattr(part, "head_dim", None) or part.hidden_size // part.num_attention_heads
            half = int(size * rope.get("partial_rotary_factor", 1.0)) // 2
            rope["mrope_section"] = [half - 2 * (half // 3), half // 3, half // 3]


def _parts(config: Any) -> Iterator[Any]:
    """A configuration and those in it."""
    yield config
    for name in getattr(config, "sub_configs", {}):
        if isinstance(own := getattr(config, name, None), transformers.PretrainedConfig):
            yield from _parts(own)
