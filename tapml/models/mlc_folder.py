"""An mlc-llm folder of quantization q4f16_1 becomes a folder in tapml's own layout, once.

``tensor-cache.json`` (``ndarray-cache.json`` in older ones) lists the tensors of each
``params_shard_*.bin``; ``mlc-chat-config.json`` has the configuration. A layer has ``q_weight``
uint32 ``[N, K/8]``, the first code in the lowest bits, and ``q_scale`` float16 ``[N, K/32]``; a
weight is ``(code - 7) * scale``. Source: mlc-llm, ``group_quantization.py``. Its products
are fused: the rows of ``qkv_proj`` are those of q, k and v, of ``gate_up_proj`` those of gate and
up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tapml.models.packed.operation import WORD_BITS
from tapml.models.packed.stored import write_packed_folder
from tapml.models.packed.weight import PackedWeight
from tapml_targets.errors import InputError

CHAT_CONFIG: Final = "mlc-chat-config.json"
CACHES: Final = ("tensor-cache.json", "ndarray-cache.json")
QUANTIZATION: Final = "q4f16_1"
_BITS: Final = 4
_MIDDLE: Final = 7
_GROUP: Final = 32
_LARGEST_JSON: Final = 64 << 20
_MODEL_TYPES: Final = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM"}
_DTYPES: Final = {"uint32": "<u4", "float16": "<f2", "float32": "<f4"}
_COPIED: Final = ("tokenizer.json", "tokenizer_config.json")
_SIZES: Final = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers"),
    *("num_key_value_heads", "vocab_size"),
)

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
_FileName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]+\.bin\Z", max_length=200)]


class _Record(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(max_length=500)]
    shape: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=4)]
    dtype: str
    nbytes: _Count
    offset: _Count = msgspec.field(name="byteOffset")
    form: Literal["raw", "f32-to-bf16"] = msgspec.field(name="format", default="raw")


class _Shard(msgspec.Struct):
    path: _FileName = msgspec.field(name="dataPath")
    records: list[_Record]


class _Cache(msgspec.Struct):
    records: list[_Shard]


def convert_mlc(folder: Path, made: Path) -> None:
    """Write the folder of a folder.

    Raises
    ------
    InputError
        If it is cut short, has another quantization or architecture, or tensors that do not fit.
    """
    chat = _json(folder / CHAT_CONFIG)
    if chat.get("quantization") != QUANTIZATION:
        raise InputError(
            f"{folder / CHAT_CONFIG} has the quantization {str(chat.get('quantization'))[:40]!r}: "
            f"expected {QUANTIZATION}; take the model's Hugging Face folder, and --quantize int4"
        )
    config = _config(chat, folder)
    tensors = dict(_tensors(folder))
    packed: dict[str, PackedWeight] = {}
    floats: dict[str, Tensor] = {}
    for name in sorted(tensors):
        path, _, end = name.rpartition(".")
        if end == "q_weight":
            for part, rows in _parts(path, config, len(tensors[name])):
                packed[part] = _weight(tensors, path, rows)
        elif end != "q_scale":
            floats[name] = torch.from_numpy(tensors[name].astype(np.float32))
    write_packed_folder(
        made, config, packed, floats, made_from=f"mlc {QUANTIZATION}", tokenizer=None
    )
    for name in _COPIED:
        if (folder / name).is_file():
            (made / name).write_bytes((folder / name).read_bytes())


def _json(path: Path) -> dict[str, Any]:
    data = _bounded(path)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON ({error}): fetch the folder again") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} is no JSON object: fetch the folder again")
    return found


def _bounded(path: Path) -> bytes:
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise InputError(f"{path} has more than {_LARGEST_JSON} bytes")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def _config(chat: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    kind = str(chat.get("model_type"))
    given = chat.get("model_config")
    if kind not in _MODEL_TYPES or not isinstance(given, dict):
        raise InputError(
            f"{folder / CHAT_CONFIG} has the model_type {kind[:40]!r}: expected one of "
            f"{', '.join(_MODEL_TYPES)}; take the model's Hugging Face folder, and --quantize int4"
        )
    config: dict[str, Any] = {"architectures": [_MODEL_TYPES[kind]], "model_type": kind}
    for name in _SIZES:
        value = given.get(name)
        if not isinstance(value, int) or not 0 < value <= 1 << 24:
            raise InputError(f"{folder / CHAT_CONFIG} has {name} = {str(value)[:40]}")
        config[name] = value
    heads = config["num_attention_heads"]
    config |= {
        "head_dim": int(given.get("head_dim") or config["hidden_size"] // heads),
        "rms_norm_eps": float(given.get("rms_norm_eps", 1e-5)),
        "rope_theta": float(given.get("position_embedding_base") or 10000.0),
        "max_position_embeddings": int(given.get("context_window_size") or 4096),
        "tie_word_embeddings": bool(given.get("tie_word_embeddings", False)),
        "hidden_act": "silu",
    }
    if isinstance(scaling := given.get("rope_scaling"), dict):
        config["rope_scaling"] = scaling
    for name in ("bos_token_id", "eos_token_id"):
        config[name] = chat.get(name)
    return config


def _tensors(folder: Path) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Each tensor of the folder, mapped from its file."""
    listed = next((folder / name for name in CACHES if (folder / name).is_file()), None)
    if listed is None:
        raise InputError(f"{folder} has neither {' nor '.join(CACHES)}: fetch the folder again")
    try:
        cache = msgspec.json.decode(_bounded(listed), type=_Cache)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{listed} does not list tensors ({error}): fetch it again") from error
    for shard in cache.records:
        path = folder / shard.path
        try:
            data: npt.NDArray[Any] = np.memmap(path, np.uint8, "r")
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read {path} ({error}): fetch the folder again") from error
        for record in shard.records:
            kind = _DTYPES.get(record.dtype)
            if kind is None or record.form != "raw":
                raise InputError(
                    f"{listed} has {record.name} as {record.dtype[:20]}, {record.form}: expected "
                    f"{', '.join(_DTYPES)}"
                )
            count = int(np.prod([int(each) for each in record.shape], dtype=object))
            end = record.offset + record.nbytes
            if count * np.dtype(kind).itemsize != record.nbytes or end > data.nbytes:
                raise InputError(
                    f"{path} is cut short: {record.name} {record.shape} of {record.dtype} ends at "
                    f"byte {end} of {data.nbytes}; fetch the folder again"
                )
            piece = data[record.offset : end]
            yield record.name, np.frombuffer(piece.tobytes(), kind).reshape(record.shape)


def _parts(path: str, config: Mapping[str, Any], rows: int) -> Iterator[tuple[str, slice]]:
    """The layers of the model whose rows a fused layer has."""
    begin, _, own = path.rpartition(".")
    head = config["head_dim"]
    queries = config["num_attention_heads"] * head
    keys = config["num_key_value_heads"] * head
    inner = config["intermediate_size"]
    fused = {
        "qkv_proj": {"q_proj": queries, "k_proj": keys, "v_proj": keys},
        "gate_up_proj": {"gate_proj": inner, "up_proj": inner},
    }.get(own)
    if fused is None:
        yield path, slice(None)
        return
    if sum(fused.values()) != rows:
        raise InputError(
            f"{path}.q_weight has {rows} rows: expected {sum(fused.values())} for "
            f"{' + '.join(fused)}; {CHAT_CONFIG} and the weights belong to different models"
        )
    start = 0
    for name, count in fused.items():
        yield f"{begin}.{name}", slice(start, start + count)
        start += count


def _weight(tensors: Mapping[str, npt.NDArray[Any]], path: str, rows: slice) -> PackedWeight:
    words, scales = tensors[f"{path}.q_weight"], tensors.get(f"{path}.q_scale")
    shape = (len(words), words.shape[1] * (WORD_BITS // _BITS) // _GROUP)
    if scales is None or scales.shape != shape:
        raise InputError(
            f"{path}.q_scale has shape {None if scales is None else scales.shape}: expected "
            f"{shape} for {path}.q_weight {words.shape}"
        )
    # The inner layout has the same words.
    codes = torch.from_numpy(words[rows].view(np.int32).copy())
    return PackedWeight(codes, _BITS, _MIDDLE, torch.from_numpy(scales[rows].astype(np.float32)))
