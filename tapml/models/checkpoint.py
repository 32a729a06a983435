"""Looks at a Hugging Face folder before anything is loaded from it.

Nothing in a folder is trusted: files are opened by their plain names, sizes are bounded, and the
headers of the safetensors files are checked against the files, so that a truncated download is
reported as one instead of as an error from deep inside a library.
"""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tapml_targets.errors import InputError

ARCHITECTURES: Final = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "ScanLlamaForCausalLM",
)
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_LARGEST_JSON = 64 * 1024 * 1024
# The format's own bound on a header.
_LARGEST_HEADER = 100_000_000
_ITEM_BITS: Final = {"F32": 32, "F16": 16, "BF16": 16}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]+\.safetensors")


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a checkpoint: its file, safetensors dtype (``F32``, ``BF16``) and shape."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Checkpoint:
    """A folder that was looked through: its configuration and what its weight files hold."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, StoredTensor]

    @property
    def dtypes(self) -> frozenset[str]:
        """Safetensors dtypes of the weights."""
        return frozenset(tensor.dtype for tensor in self.tensors.values())

    @property
    def natural_dtype(self) -> str:
        """``float16`` where all weights are; else ``float32``, which holds bfloat16 exactly."""
        return "float16" if self.dtypes == {"F16"} else "float32"


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of bounded size.

    Raises
    ------
    InputError
        If the file cannot be read or is no JSON object.
    """
    try:
        size = path.stat().st_size
        if size > _LARGEST_JSON:
            raise InputError(f"{path} has {size} bytes: expected at most {_LARGEST_JSON}")
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is not valid JSON ({error}): fetch the model's folder again"
        ) from error
    if not isinstance(value, dict):
        raise InputError(f"{path} holds a {type(value).__name__}: expected a JSON object")
    return value


def inspect_checkpoint(folder: Path) -> Checkpoint:
    """Check that a folder holds a model of a supported family, whole and in safetensors.

    Raises
    ------
    InputError
        If it does not; the message names the file and what to do.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder: expected a Hugging Face model folder")
    config_path = folder / "config.json"
    if not config_path.is_file():
        raise InputError(
            f"{folder} is no model: expected config.json and *.safetensors in it, "
            f"found {_listing(folder)}"
        )
    config = read_json(config_path)
    _check_config(config, config_path)
    if (folder / "adapter_config.json").exists():
        raise InputError(
            f"{folder} holds an adapter (adapter_config.json): merge it into its base model and "
            "save that (peft: merge_and_unload().save_pretrained(...))"
        )
    tensors: dict[str, StoredTensor] = {}
    for file in _weight_files(folder):
        tensors.update(read_header(file))
    _check_tensors(config, tensors, folder)
    return Checkpoint(folder, config, tensors)


def read_header(file: Path) -> dict[str, StoredTensor]:
    """Read and check the header of a safetensors file.

    Raises
    ------
    InputError
        If the header is malformed or does not fit the file's length.
    """

    def damaged(reason: str) -> InputError:
        return InputError(
            f"{file} is not a whole safetensors file ({reason}): fetch the file again"
        )

    try:
        total = file.stat().st_size
        with file.open("rb") as stream:
            prefix = stream.read(8)
            if len(prefix) < 8:
                raise damaged(f"it has {total} bytes")
            (length,) = struct.unpack("<Q", prefix)
            if length > min(_LARGEST_HEADER, total - 8):
                raise damaged(f"its header claims {length} bytes, the file has {total}")
            header = json.loads(stream.read(length))
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise damaged("its header is not JSON") from error
    if not isinstance(header, dict):
        raise damaged("its header is no JSON object")
    header.pop("__metadata__", None)
    tensors: dict[str, StoredTensor] = {}
    end = 0
    for name, entry in header.items():
        tensor, last = _parse_tensor(file, name, entry)
        if tensor is None:
            raise damaged(f"the entry of tensor {name[:100]!r} makes no sense")
        tensors[name] = tensor
        end = max(end, last)
    if 8 + length + end != total:
        raise damaged(f"its tensors need {8 + length + end} bytes, the file has {total}")
    return tensors


def _parse_tensor(file: Path, name: str, entry: Any) -> tuple[StoredTensor | None, int]:
    """One tensor of a header and where its bytes end; None where the entry makes no sense."""
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(first), int(last)]}:
            if not all(isinstance(size, int) and size >= 0 for size in shape):
                return None, 0
            if not 0 <= first <= last:
                return None, 0
            bits = _ITEM_BITS.get(dtype)
            if bits is None:
                raise InputError(
                    f"tensor {name[:100]!r} in {file} has dtype {dtype}: expected F32, F16 or "
                    "BF16; load the model where its quantization is supported and save it "
                    "unquantized"
                )
            if math.prod(shape) * bits // 8 != last - first:
                return None, 0
            return StoredTensor(file, dtype, tuple(shape)), last
    return None, 0


def _weight_files(folder: Path) -> list[Path]:
    single = folder / _SINGLE
    if single.is_file():
        return [single]
    index_path = folder / _INDEX
    if index_path.is_file():
        weight_map = read_json(index_path).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise InputError(f"{index_path} has no weight_map: fetch the file again")
        names = sorted({str(name) for name in weight_map.values()})
        for name in names:
            if not _PLAIN_NAME.fullmatch(name):
                raise InputError(
                    f"{index_path} names {name[:100]!r}: expected plain *.safetensors names"
                )
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise InputError(
                f"{folder} lacks {len(missing)} of {len(names)} weight files, first "
                f"{missing[0]}: fetch the folder again"
            )
        return [folder / name for name in names]
    pickled = sorted(
        path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern)
    )
    if pickled:
        raise InputError(
            f"{folder} holds its weights as {pickled[0]}, a pickle, which can run code when it is "
            "read: expected safetensors. Convert it where you trust it: "
            "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
        )
    raise InputError(
        f"{folder} has no weights: expected {_SINGLE} or {_INDEX}, found {_listing(folder)}"
    )


def _check_config(config: dict[str, Any], path: Path) -> None:
    architectures = config.get("architectures")
    found = architectures[0] if isinstance(architectures, list) and architectures else None
    if found not in ARCHITECTURES:
        raise InputError(
            f"{path} has the architecture {found!r}: expected one of {', '.join(ARCHITECTURES)}"
        )
    if config.get("quantization_config") is not None:
        raise InputError(
            f"{path} has a quantization_config: expected float32, float16 or bfloat16 weights; "
            "save the model dequantized"
        )
    for key, largest in (
        ("vocab_size", 1 << 22),
        ("hidden_size", 1 << 17),
        ("num_hidden_layers", 1 << 10),
        ("num_attention_heads", 1 << 12),
    ):
        value = config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= largest:
            raise InputError(
                f"{path} has {key} = {value!r}: expected a whole number from 1 to {largest}"
            )
    heads = config["num_attention_heads"]
    groups = config.get("num_key_value_heads") or heads
    if not isinstance(groups, int) or groups < 1 or heads % groups:
        raise InputError(
            f"{path} has num_key_value_heads = {groups!r}: expected a divisor of "
            f"num_attention_heads = {heads}"
        )


def _check_tensors(config: dict[str, Any], tensors: dict[str, StoredTensor], folder: Path) -> None:
    name = "model.embed_tokens.weight"
    expected = (config["vocab_size"], config["hidden_size"])
    if name not in tensors:
        raise InputError(f"the weights in {folder} lack {name}: fetch the folder again")
    if tensors[name].shape != expected:
        raise InputError(
            f"{name} in {tensors[name].file} has shape {tensors[name].shape}, but config.json "
            f"says {expected} (vocab_size, hidden_size): the files belong to different models"
        )
    last = config["num_hidden_layers"] - 1
    if not any(tensor.startswith(f"model.layers.{last}.") for tensor in tensors):
        raise InputError(
            f"the weights in {folder} lack layer {last}, but config.json says num_hidden_layers "
            f"= {last + 1}: the files belong to different models"
        )


def _listing(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") if names else "nothing"
