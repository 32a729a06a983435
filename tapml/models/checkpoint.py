"""Inspects a Hugging Face folder before loading it.

The folder is untrusted: files are opened by plain names, sizes are bounded, and the headers of the
safetensors files are checked against the files, so that a truncated download is reported as one
and not as an error of a library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from tapml.models.families import architectures, nearest
from tapml.models.families.family import Family
from tapml.models.packed.formats import format_of
from tapml.models.tensor_file import open_tensors
from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from tapml.models.packed.formats.format import Format

_GENERATION: Final = "generation_config.json"
_SINGLE = "model.safetensors"
_ADAPTER: Final = "adapter_config.json"
_INDEX = "model.safetensors.index.json"
# Of models that are one file.
_FILES: Final = ("*.gguf", "*.onnx", "onnx/model.onnx", "*.pt2")
_LARGEST_JSON = 64 * 1024 * 1024
_DTYPES: Final = ("float32", "float16", "bfloat16")
# Of quantized weights.
_CODES: Final = ("int32", "int64", "int8", "uint8")
# Of buffers that some classes store: steps of a batch norm, indices of a window.
_COUNTED: Final = ("int64", "int32", "bool")
# Of buffers in older files of a family, which its class computes: positions, a causal mask.
_PLACES: Final = ("int64", "bool")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]+\.safetensors")


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a checkpoint: its file, dtype (:mod:`tapml_targets.dtype`) and shape."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Checkpoint:
    """An inspected folder: its family, configuration and the contents of its weight files.

    `form` is the format of quantized weights, None if all are floats.
    """

    folder: Path
    family: Family
    config: dict[str, Any]
    tensors: dict[str, StoredTensor]
    form: Format | None = None

    @property
    def dtypes(self) -> frozenset[str]:
        """Dtypes of the weights."""
        return frozenset(tensor.dtype for tensor in self.tensors.values())

    @property
    def natural_dtype(self) -> Literal["float32", "float16"]:
        """``float16`` if all weights are; else ``float32``, which represents bfloat16 exactly."""
        floats = {each for each in self.dtypes if each in _DTYPES}
        return "float16" if floats == {"float16"} and self.form is None else "float32"


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of bounded size.

    Raises
    ------
    InputError
            If the file cannot be read or is not a JSON object.
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
        raise InputError(f"{path} contains a {type(value).__name__}: expected a JSON object")
    return value


def inspect_checkpoint(folder: Path) -> Checkpoint:
    """Check that a folder has a complete model of a supported family in safetensors.

    Raises
    ------
    InputError
        If it does not; the message names the file and a remedy.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: expected a Hugging Face model folder")
    config_path = folder / "config.json"
    if not config_path.is_file():
        raise InputError(
            f"{folder} is not a model: expected config.json and *.safetensors in it, "
            f"found {_listing(folder)}{_model_inside(folder)}"
        )
    config = read_json(config_path)
    if (folder / _GENERATION).is_file():
        # transformers reads past a damaged one, and a text would go on behind its end.
        read_json(folder / _GENERATION)
    family = _family(config, config_path)
    for name, other in family.other_names:
        if config.get(other) is not None:
            config[name] = config[other]
    _check_config(family, config, config_path)
    if (folder / _ADAPTER).exists():
        raise InputError(f"{folder} contains an adapter ({_ADAPTER}){_merging(folder)}")
    tensors: dict[str, StoredTensor] = {}
    form = format_of(config, str(config_path))
    more = _CODES if form is not None else _COUNTED if family.tried else _PLACES
    for file in _weight_files(folder):
        tensors.update(_tensors(file, (*_DTYPES, *more)))
    if form is None:
        _check_tensors(family, config, tensors, folder)
    return Checkpoint(folder, family, config, tensors, form)


def _tensors(file: Path, dtypes: Sequence[str]) -> dict[str, StoredTensor]:
    tensors = {
        name: StoredTensor(file, stored.dtype, stored.shape)
        for name, stored in open_tensors(file).tensors.items()
    }
    for name, tensor in tensors.items():
        if tensor.dtype not in dtypes:
            if tensor.dtype == "float64":
                remedy = "convert it where it was made (model.float().save_pretrained(FOLDER))"
            else:
                remedy = (
                    "config.json says nothing of a quantization with it: fetch config.json again, "
                    "or save the model unquantized"
                )
            raise InputError(
                f"tensor {name[:100]!r} in {file} has dtype {tensor.dtype}, expected one of "
                f"{', '.join(dtypes)}; {remedy}"
            )
    return tensors


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
            f"{folder} stores its weights in {pickled[0]}, a pickle, which can run code when it is "
            "read: expected safetensors. Convert it where you trust it: "
            "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
        )
    broken = [each.name for each in (single, index_path) if each.is_symlink()]
    if broken:
        raise InputError(
            f"{folder} has no weights: {broken[0]} is a link to {(folder / broken[0]).readlink()}, "
            "which is not there; fetch the folder again"
        )
    shards = any(folder.glob("model-*.safetensors"))
    remedy = f"; fetch {_INDEX}, which lists the parts" if shards else _model_inside(folder)
    raise InputError(
        f"{folder} has no weights: expected {_SINGLE} or {_INDEX}, found {_listing(folder)}{remedy}"
    )


def _model_inside(folder: Path) -> str:
    """What a folder has that is meant instead: a snapshot of a cache, a GGUF file, an adapter."""
    snapshots = sorted(each.parent for each in folder.glob("snapshots/*/config.json"))
    if snapshots:
        return f"; give the model in it, {snapshots[-1]}"
    files = [each for kind in _FILES for each in sorted(folder.glob(kind))]
    if files:
        return f"; give the file, {files[0]}"
    if (folder / "model_index.json").is_file():
        return (
            "; it is a pipeline of several models (diffusers): give the part that is of "
            "transformers, such as its text_encoder, and others as modules (tapml.from_torch)"
        )
    if (folder / "saved_model.pb").is_file():
        return "; it is TensorFlow's SavedModel: export it as ONNX (tf2onnx --saved-model)"
    if (folder / _ADAPTER).exists():
        return f"; {_ADAPTER} is an adapter's{_merging(folder)}"
    inside = sorted(each.parent for each in folder.glob("*/config.json"))
    if (folder / "modules.json").is_file() and inside:
        return f"; it is of sentence-transformers: give the model in it, {inside[0]}"
    return ""


def _merging(folder: Path) -> str:
    """What to do with an adapter, with the base model that it names."""
    try:
        base = read_json(folder / _ADAPTER).get("base_model_name_or_path")
    except InputError:
        base = None
    named = f" {base[:100]}" if isinstance(base, str) else ""
    return (
        f": merge it into its base model{named} and save that "
        "(peft: merge_and_unload().save_pretrained(...))"
    )


def _family(config: dict[str, Any], path: Path) -> Family:
    named = config.get("architectures")
    found = named[0] if isinstance(named, list) and named else None
    if found is None and isinstance(config.get("pretrained_cfg"), dict):
        name = str(config.get("architecture"))[:60]
        raise InputError(
            f"{path} is of timm: make the module in Python (timm.create_model({name!r})) and give "
            "it to tapml.from_torch with an image; model.save(FOLDER) keeps it for every command"
        )
    if not isinstance(found, str):
        raise InputError(
            f"{path} has architectures = {str(named)[:60]}: expected a list with the name of the "
            f'model\'s class, such as ["LlamaForCausalLM"]; its model_type is '
            f"{str(config.get('model_type'))[:60]!r}"
        )
    family = architectures().get(found)
    if family is None:
        # Needs transformers, which most folders are inspected without.
        from tapml.models.unlisted import unlisted_family

        family = unlisted_family(found)
    if family is None:
        raise InputError(
            f"{path} has the unknown architecture {found[:100]!r}: the nearest of the "
            f"{len(architectures())} known ones is {nearest(found)}; code in a folder "
            "never runs"
        )
    return family


def _check_config(family: Family, config: dict[str, Any], path: Path) -> None:
    for key, largest in family.sizes:
        value = config.get(key)
        if value is None and family.tried:
            continue  # the class's default
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= largest:
            raise InputError(
                f"{path} has {key} = {value!r}: expected an integer from 1 to {largest}"
            )
    if not family.heads or family.tried:
        return
    heads = config[family.heads]
    groups = config.get(family.kv_heads) or heads
    if not isinstance(groups, int) or groups < 1 or heads % groups:
        raise InputError(
            f"{path} has {family.kv_heads} = {groups!r}: expected a divisor of "
            f"{family.heads} = {heads}"
        )


def _check_tensors(
    family: Family, config: dict[str, Any], tensors: dict[str, StoredTensor], folder: Path
) -> None:
    if not family.embedding:
        return
    found = next((n for n in _spellings(family, family.embedding) if n in tensors), None)
    expected = (config[family.vocabulary], config[family.width])
    if found is None:
        raise InputError(f"the weights in {folder} lack {family.embedding}: fetch the folder again")
    if tensors[found].shape != expected:
        raise InputError(
            f"{found} in {tensors[found].file} has shape {tensors[found].shape}, but config.json "
            f"says {expected} ({family.vocabulary}, {family.width}): the files belong to different "
            "models"
        )
    last = config[family.layers] - 1
    begin = _spellings(family, family.layer.format(last))
    if not any(tensor.startswith(begin) for tensor in tensors):
        raise InputError(
            f"the weights in {folder} lack layer {last}, but config.json says {family.layers} "
            f"= {last + 1}: the files belong to different models"
        )


def _spellings(family: Family, name: str) -> tuple[str, ...]:
    """A weight's name with and without the prefix that some files lack."""
    return (name, name.removeprefix(family.prefix))


def _listing(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") if names else "nothing"
