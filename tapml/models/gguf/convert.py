"""A GGUF file becomes a folder in tapml's own layout, once, in the user's cache.

All that follows (sessions, packages, tokenizers, resumed runs) then sees a model folder. The codes
are the file's own; nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tapml.models.gguf.architectures import WINDOW, GgufArchitecture, architecture_of, name_here
from tapml.models.gguf.blocks import KINDS, read_blocks
from tapml.models.gguf.bounds import check_bounds
from tapml.models.gguf.tokenizer import tokenizer_config, tokenizer_json
from tapml.models.packed.stored import write_packed_folder
from tapml.models.packed.weight import PackedWeight
from tapml.models.said_by import said_by
from tapml_targets.errors import InputError
from tapml_targets.installed import install_hint

_PLAIN: Final = ("F32", "F16", "BF16")
_COMPUTED: Final = "rope_freqs.weight"
# Factors of the frequencies up to a length and beyond it.
_FACTORS: Final = {
    "rope_factors_short.weight": "short_factor",
    "rope_factors_long.weight": "long_factor",
}
_EMBEDDING: Final = "token_embd.weight"
_SIZES: Final = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
}
_LARGEST: Final = 1 << 24


def convert_gguf(path: Path, folder: Path) -> None:
    """Write the folder of a file.

    Raises
    ------
    InputError
        If the file is cut short or damaged, has another architecture or quantization, tensors that
        do not fit each other, or if the library ``gguf`` is not installed.
    """
    reader = _open(path)
    fields = {name: _content(field) for name, field in reader.fields.items() if field.types}
    content = str(fields.get("general.type", "model"))
    if content != "model":
        raise InputError(
            f"{path} is a GGUF file of the type {content[:40]!r}: expected a model; an adapter is "
            "merged into its model first (llama.cpp: llama-export-lora)"
        )
    architecture, named = architecture_of(fields, path)
    config = _config(path, fields, architecture, named)
    config["vocab_size"] = config["vocab_size"] or _rows_of_embedding(reader)
    _check_whole(path, fields, architecture, named, config)
    rotated = _rotated(config) if named.turned else frozenset()
    packed: dict[str, PackedWeight] = {}
    floats: dict[str, Tensor] = {}
    kinds: dict[str, int] = {}
    factors: dict[str, list[float]] = {}
    for tensor in reader.tensors:
        if tensor.name == _COMPUTED:
            _take_frequencies(path, tensor, config)
            continue
        if tensor.name in _FACTORS:
            factors[_FACTORS[tensor.name]] = _factors(path, tensor, config)
            continue
        whole = name_here(str(tensor.name), named, path)
        kind = str(tensor.tensor_type.name)
        if kind not in KINDS and kind not in _PLAIN:
            raise InputError(
                f"{path} has {tensor.name} as {kind}: expected one of {', '.join(KINDS)}, F16, "
                "BF16 or F32; fetch the model's Q4_0, Q4_K_M or Q8_0 file"
            )
        kinds[kind] = kinds.get(kind, 0) + (kind in KINDS)
        data = np.asarray(tensor.data)
        shape = tuple(int(each) for each in reversed(tensor.shape))
        if data.ndim != (3 if "{}" in whole else len(shape)) or (kind in KINDS and data.ndim < 2):
            raise InputError(
                f"{path} has {tensor.name} of shape {shape} as {kind}: fetch the file again"
            )
        of_experts = enumerate(data) if "{}" in whole else [(None, data)]
        for expert, each in of_experts:
            one = whole if expert is None else whole.format(expert)
            name = one.removesuffix(".weight")
            if kind in KINDS:
                weight = read_blocks(kind, each)
                packed[name] = weight if name not in rotated else _turned(weight, name, config)
                continue
            array = _floats(kind, each).reshape(shape if expert is None else shape[1:])
            if name in rotated:
                array = array[_order(len(array), name, config)].contiguous()
            floats[one] = array - 1 if named.shifted and name.endswith("norm") else array
    if factors:
        scaled = _long(path, fields, architecture, config) | factors
        config["rope_parameters"] = scaled
        # Phi-3's class takes this one.
        before = "original_max_position_embeddings"
        config[before] = scaled[before]
    config["tie_word_embeddings"] = "lm_head" not in packed and "lm_head.weight" not in floats
    most = max(kinds, key=lambda kind: kinds[kind]) if packed else "floats"
    write_packed_folder(
        folder,
        config,
        packed,
        floats,
        made_from=f"GGUF {most}",
        tokenizer=tokenizer_json(fields),
        tokenizer_config=tokenizer_config(fields),
    )


def _floats(kind: str, data: Any) -> Tensor:
    """Plain numbers as float32."""
    array = torch.from_numpy(np.array(data))
    # The library gives the bytes of BF16.
    return (array.view(torch.bfloat16) if kind == "BF16" else array).to(torch.float32)


def _open(path: Path) -> Any:
    check_bounds(path)
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise InputError(
            "GGUF files need the `gguf` library, which is not installed: install tapml[models] "
            f"({install_hint('models')})"
        ) from error
    try:
        return GGUFReader(path)
    except Exception as error:  # the library raises errors of any class on a damaged file
        raise InputError(
            f"{path} is not a whole GGUF file ({said_by(error)}): fetch it again"
        ) from error


def _rows_of_embedding(reader: Any) -> int:
    """The vocabulary of a file without a tokenizer; 0 if it has no table, which is said later."""
    shapes = (each.shape for each in reader.tensors if each.name == _EMBEDDING)
    return next((int(shape[-1]) for shape in shapes), 0)


def _content(field: Any) -> Any:
    try:
        return field.contents()
    except Exception:  # a value that is no text is missed where it is needed
        return None


def _config(
    path: Path, fields: Mapping[str, Any], architecture: str, named: GgufArchitecture
) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": [named.class_name],
        "model_type": named.model_type,
    }
    for theirs, ours in _SIZES.items():
        value = fields.get(f"{architecture}.{theirs}")
        if theirs == "attention.head_count_kv" and value is None:
            value = config["num_attention_heads"]
        if not isinstance(value, int) or not 0 < value <= _LARGEST:
            raise InputError(
                f"{path} has {theirs} = {str(value)[:40]}: expected an integer from 1 to {_LARGEST}"
            )
        config[ours] = value
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    size = fields.get(f"{architecture}.attention.key_length")
    known = config["hidden_size"] % heads == 0 if size is None else isinstance(size, int)
    if not known or heads % groups:
        raise InputError(f"{path} has {heads} heads over {groups} for {config['hidden_size']} wide")
    tokens = fields.get("tokenizer.ggml.tokens") or ()
    config |= {
        "vocab_size": int(fields.get(f"{architecture}.vocab_size") or len(tokens)),
        "rms_norm_eps": float(
            fields.get(f"{architecture}.attention.layer_norm_rms_epsilon") or 1e-5
        ),
        "rope_theta": float(fields.get(f"{architecture}.rope.freq_base") or 10000.0),
        "head_dim": int(size or config["hidden_size"] // heads),
        "hidden_act": "silu",
        "torch_dtype": "float32",
        **named.own,
    }
    turned = fields.get(f"{architecture}.rope.dimension_count")
    if named.turns_a_part and isinstance(turned, int) and 0 < turned < config["head_dim"]:
        config["partial_rotary_factor"] = turned / config["head_dim"]
    for theirs, ours in named.numbers.items():
        number = fields.get(f"{architecture}.{theirs}")
        if isinstance(number, int | float):
            config[ours] = number or None
    if named.scaled_by_width is not None:
        wide = config["num_hidden_layers"] == named.scaled_by_width
        scale = config["hidden_size"] // heads if wide else config["head_dim"]
        config["query_pre_attn_scalar"] = scale
    scaling = _scaling(path, fields, architecture)
    if scaling is not None and "rope_local_base_freq" in config:
        # Layers of one kind have their own positions, which are not scaled.
        config["rope_scaling"] = scaling
    elif scaling is not None:
        config["rope_parameters"] = scaling | {"rope_theta": config["rope_theta"]}
    for theirs, ours in (("bos", "bos_token_id"), ("eos", "eos_token_id")):
        token = fields.get(f"tokenizer.ggml.{theirs}_token_id")
        config[ours] = token if isinstance(token, int) else None
    return config


def _check_whole(
    path: Path,
    fields: Mapping[str, Any],
    architecture: str,
    named: GgufArchitecture,
    config: Mapping[str, Any],
) -> None:
    """Refuse what the tensors do not show: a part of a model, and what its class does not do."""
    parts = fields.get("split.count")
    if isinstance(parts, int) and parts > 1:
        raise InputError(
            f"{path} is part {int(fields.get('split.no') or 0) + 1} of {parts}: expected a whole "
            "model; join the parts (llama-gguf-split --merge FIRST-PART WHOLE.gguf)"
        )
    turned = fields.get(f"{architecture}.rope.dimension_count")
    if turned is not None and turned != _rotating(config):
        raise InputError(
            f"{path} turns {str(turned)[:40]} numbers of a head of {config['head_dim']}: expected "
            "all; take the model's safetensors folder, and --quantize int4"
        )
    window = fields.get(f"{architecture}.{WINDOW}")
    if window and WINDOW not in named.numbers:
        raise InputError(
            f"{path} has a window of {str(window)[:40]} tokens, which {named.class_name} does not: "
            "take the model's safetensors folder, and --quantize int4"
        )
    if fields.get(f"{architecture}.attention.causal") is False:
        raise InputError(
            f"{path} is an encoder, whose tokens see those behind them: take the model's "
            "safetensors folder"
        )


def _scaling(path: Path, fields: Mapping[str, Any], architecture: str) -> dict[str, Any] | None:
    """The scaling of rotary positions as ``rope_parameters``, without their base; None for none."""

    def field(name: str) -> Any:
        return fields.get(f"{architecture}.rope.scaling.{name}")

    kind, factor = field("type"), field("factor")
    if factor is None:
        factor = fields.get(f"{architecture}.rope.scale_linear")
    if kind is None and factor not in (None, 0.0, 1.0):
        kind = "linear"  # Older files name no type.
    if kind in (None, "none"):
        return None
    if kind not in ("linear", "yarn") or field("yarn_ext_factor") not in (None, 1.0):
        raise InputError(
            f"{path} has RoPE scaling {str(kind)[:40]!r}: expected none, linear or yarn; take the "
            "model's safetensors folder"
        )
    if not isinstance(factor, float) or not 1 <= factor <= _LARGEST:
        raise InputError(f"{path} has RoPE scaling by {str(factor)[:40]}: expected 1 or more")
    made: dict[str, Any] = {"rope_type": kind, "factor": factor}
    if kind == "linear":
        return made
    before = field("original_context_length") or fields.get(f"{architecture}.context_length")
    if not isinstance(before, int) or not 0 < before <= _LARGEST:
        raise InputError(f"{path} has a context of {str(before)[:40]} before its scaling by yarn")
    made["original_max_position_embeddings"] = before
    for theirs, ours in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        if isinstance(field(theirs), float):
            made[ours] = field(theirs)
    if isinstance(field("attn_factor"), float):
        # On top of yarn's own (Peng et al., equation 22).
        made["attention_factor"] = field("attn_factor") * (0.1 * log(factor) + 1)
    return made


def _take_frequencies(path: Path, tensor: Any, config: dict[str, Any]) -> None:
    """Take factors of the rotary frequencies: Llama 3.1 and later have them in place of a kind.

    The class's kind ``longrope`` divides its frequencies by factors as they are.
    """
    if str(tensor.tensor_type.name) == "F32" and (np.asarray(tensor.data) == 1).all():
        return
    each = _factors(path, tensor, config)
    config["rope_parameters"] = {
        "rope_type": "longrope",
        "short_factor": each,
        "long_factor": each,
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": config["max_position_embeddings"],
        "rope_theta": config["rope_theta"],
    }


def _rotating(config: Mapping[str, Any]) -> int:
    """Numbers of a head that rotate."""
    return int(config["head_dim"] * config.get("partial_rotary_factor", 1.0))


def _factors(path: Path, tensor: Any, config: Mapping[str, Any]) -> list[float]:
    """Factors of the rotary frequencies, one for each pair of a head."""
    factors = np.asarray(tensor.data)
    expected = (_rotating(config) // 2,)
    plain = str(tensor.tensor_type.name) == "F32" and factors.shape == expected
    if not plain or not (np.isfinite(factors) & (factors > 0)).all() or "rope_parameters" in config:
        raise InputError(
            f"{path} has {tensor.name} of shape {factors.shape} as {tensor.tensor_type.name}: "
            f"expected {expected} positive numbers as F32, and no other scaling beside them; take "
            "the model's safetensors folder, and --quantize int4"
        )
    return [float(factor) for factor in factors]


def _long(
    path: Path, fields: Mapping[str, Any], architecture: str, config: Mapping[str, Any]
) -> dict[str, Any]:
    """Phi-3's scaling without its factors: it has others beyond a length."""
    before = fields.get(f"{architecture}.rope.scaling.original_context_length")
    if not isinstance(before, int) or not 0 < before <= config["max_position_embeddings"]:
        raise InputError(f"{path} has a context of {str(before)[:40]} before its scaling")
    made: dict[str, Any] = {
        "rope_type": "longrope",
        "original_max_position_embeddings": before,
        "rope_theta": config["rope_theta"],
    }
    factor = fields.get(f"{architecture}.rope.scaling.attn_factor")
    if isinstance(factor, float):
        made["attention_factor"] = factor
    return made


def _rotated(config: Mapping[str, Any]) -> frozenset[str]:
    """Layers whose rows the file has in another order: those that rotary embeddings turn."""
    layers = range(config["num_hidden_layers"])
    return frozenset(f"model.layers.{n}.self_attn.{p}_proj" for n in layers for p in "qk")


def _order(rows: int, name: str, config: Mapping[str, Any]) -> Tensor:
    """For each row of the model, that of the file, which has pairs of a head side by side."""
    heads = config["num_attention_heads" if name.endswith("q_proj") else "num_key_value_heads"]
    if rows % (2 * heads):
        raise InputError(f"{name} has {rows} rows: expected a multiple of {2 * heads}")
    pairs = torch.arange(rows).reshape(heads, rows // heads // 2, 2)
    return pairs.transpose(1, 2).reshape(-1)


def _turned(weight: PackedWeight, name: str, config: Mapping[str, Any]) -> PackedWeight:
    return weight.rows(_order(weight.shape[0], name, config))
