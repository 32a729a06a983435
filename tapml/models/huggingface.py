"""Loads a Hugging Face folder of a known family: local files, safetensors, no remote code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import torch
from torch import nn

from tapml.models.checkpoint import Checkpoint, inspect_checkpoint
from tapml.models.codec_of_folder import load_codec
from tapml.models.families.family import Family
from tapml.models.families.masks import text_config
from tapml.models.file_names import PROGRAM
from tapml.models.input_files import Array, input_file
from tapml.models.loaded import Loaded, LoadedEncoder, LoadedModel, LoadedModule
from tapml.models.mapped_weights import map_weights
from tapml.models.mlc_model import as_mlc
from tapml.models.module_folder import load_module_folder
from tapml.models.onnx_file import load_onnx
from tapml.models.packed.build import build_packed
from tapml.models.packed.quantizers import quantize_module
from tapml.models.published import load_published
from tapml.models.quiet_transformers import quiet_transformers
from tapml.models.recorded_module import load_recorded
from tapml.models.recurrent import LoadedRecurrent
from tapml.models.resolve import resolve_model
from tapml.models.said_by import said_by
from tapml.models.several_inputs import Trying, load_several
from tapml.models.stepped import LoadedStepped
from tapml.models.unlisted import NotThatWay, checked, settled
from tapml.models.vision import DoesNotRun, load_vision
from tapml.models.weight_names import check_weights
from tapml.models.weights_hash import hash_weights
from tapml_targets.errors import InputError

DTypeChoice: TypeAlias = Literal["auto", "float32", "float16"]
# A longer cache slows every decode step; a calibration prompt needs far fewer rows.
DEFAULT_CONTEXT: Final = 256
SHORTEST_CONTEXT: Final = 8
# Of an encoder: each sentence takes the time of the longest.
DEFAULT_SENTENCE: Final = 64
BATCH: Final = 4
# Of a model without a limit of its own, as with ALiBi.
LONGEST_CONTEXT: Final = 1 << 16
_DECODERS: Final[dict[str, type[LoadedModel]]] = {
    "decoder": LoadedModel,
    "recurrent": LoadedRecurrent,
    "stepped": LoadedStepped,
}
# Axial ones are of patches, by row and column.
_ROPE_TYPES: Final = (
    *("default", "linear", "dynamic", "llama3", "yarn", "longrope"),
    *("proportional", "axial"),
)
# Whose frequencies change beyond the length that the model was made for.
_OF_LENGTH: Final = ("dynamic", "longrope")


def load_model(
    name_or_path: str | Path,
    *,
    dtype: DTypeChoice = "auto",
    context_length: int | None = None,
) -> LoadedModel:
    """Load a decoder; as :func:`load_any`, which takes every kind of model.

    Raises
    ------
    InputError
        As :func:`load_any`, and if the model is no decoder.
    """
    model = load_any(name_or_path, dtype=dtype, context_length=context_length)
    if not isinstance(model, LoadedModel):
        raise InputError(f"{model.name} generates no text: expected a decoder")
    return model


def load_any(
    name_or_path: str | Path,
    *,
    dtype: DTypeChoice = "auto",
    context_length: int | None = None,
    inputs: Sequence[str | Path] = (),
    quantize: str = "",
    mlc_llm: str = "",
    trying: Trying | None = None,
) -> Loaded:
    """Load a zoo model or a folder of any known family.

    Parameters
    ----------
    name_or_path
        Zoo name, or path of a Hugging Face folder.
    dtype
        ``auto`` is float16 for a float16 checkpoint and float32 for float32 and bfloat16 ones
        (bfloat16 widens exactly).
    context_length
        Rows of a decoder's cache, or tokens of an encoder's sentence with padding; the default is
        the model's own limit, at most 256 or 64.
    inputs
        Files (:mod:`tapml.models.input_files`) that a plain module is run on.
    quantize
        Name of a scheme (:data:`tapml.models.packed.quantizers.SCHEMES`) that float weights are
        packed by; empty to take them as they are.
    mlc_llm
        Source of mlc-llm (:mod:`tapml.models.mlc_source`) whose definition and loader are taken for
        a decoder; empty for the class of ``transformers`` or of tapml.
    trying
        Told of each way of inputs that a class of no known kind is tried with.

    Raises
    ------
    InputError
            If the folder is not a valid model of the family, or an argument does not fit it.
    """
    folder = resolve_model(name_or_path)
    given = [input_file(each) for each in inputs]
    if quantize and (folder.is_file() or (folder / PROGRAM).is_file()):
        raise InputError(f"--quantize {quantize}: {folder.name} is a graph, and stays as it is")
    if mlc_llm and (folder.is_file() or (folder / PROGRAM).is_file()):
        raise InputError(f"--mlc-llm: {folder.name} is a graph: expected a Hugging Face folder")
    if mlc_llm and quantize:
        raise InputError("--mlc-llm takes float weights: leave --quantize out")
    if folder.is_file():
        return _module(load_onnx(folder, given), dtype, context_length, given)
    if (folder / PROGRAM).is_file():
        return _module(load_recorded(folder), dtype, context_length, given)
    checkpoint = inspect_checkpoint(folder)
    if dtype not in ("auto", "float32", "float16"):
        raise InputError(f"unknown model dtype {dtype!r}: expected auto, float32 or float16")
    chosen: DTypeChoice = checkpoint.natural_dtype if dtype == "auto" else dtype
    family = checkpoint.family
    if quantize and checkpoint.form is not None:
        raise InputError(
            f"--quantize {quantize}: {folder.name} is quantized already "
            f"({checkpoint.form.methods[0]}); leave it out"
        )
    read = family.image is not None or family.several
    if quantize and family.workload == "module" and not read:
        raise InputError(
            f"--quantize {quantize}: {folder.name} is a plain module, which stays as it is"
        )
    if family.workload == "module" and not read:
        return _module(load_module_folder(checkpoint, chosen), chosen, context_length, given)
    if given and not read:
        raise InputError(f"{folder.name} takes no arrays: leave --input out")
    module = _load_module(checkpoint, chosen)
    if mlc_llm and family.workload != "decoder":
        raise InputError(f"--mlc-llm: {folder.name} is no decoder with a cache: leave it out")
    if read:
        _check_finite(module, folder, chosen)
        told = (quantize_module(module, quantize),) if quantize else ()
        found = _of_images(checkpoint, module, chosen, trying)
        found = replace(found, quantization=quantize, notes=(*told, *found.notes))
        return _module(found, chosen, context_length, given)
    try:
        loaded = _of_text(checkpoint, module, chosen, context_length, quantize)
    except NotThatWay as error:
        if quantize or mlc_llm or checkpoint.form is not None or context_length is not None:
            raise
        return _as_it_is(module, folder, chosen, error, trying)
    return as_mlc(loaded, checkpoint, mlc_llm) if mlc_llm else loaded


def _of_images(
    checkpoint: Checkpoint, module: Any, chosen: str, trying: Trying | None
) -> LoadedModule:
    """A model of images or sound, or a class's forward as it is."""
    folder, family = checkpoint.folder, checkpoint.family
    if family.several:
        return _as_it_is(module, folder, chosen, None, trying)
    try:
        vision = load_vision(module, family, folder, chosen, hash_weights(module), BATCH)
        return checked(vision) if family.tried else vision
    except (DoesNotRun, NotThatWay) as error:
        if not family.tried:
            raise
        return _as_it_is(module, folder, chosen, error, trying)


def _as_it_is(
    module: Any, folder: Path, dtype: str, refused: InputError | None, trying: Trying | None
) -> LoadedModule:
    """A class that is no model of a kind with entries of its own, or not one that they fit."""
    _check_finite(module, folder, dtype)
    reason = str(getattr(refused, "reason", "") or refused or "")
    try:
        found = load_several(module, folder, dtype, hash_weights(module), reason, trying)
        return checked(found)
    except InputError as error:
        if refused is None:
            raise
        raise InputError(f"{refused}; as a plain module: {error}") from None


def _of_text(
    checkpoint: Checkpoint,
    module: Any,
    chosen: DTypeChoice,
    context_length: int | None,
    quantize: str,
) -> Loaded:
    """A model of tokens: a decoder, an encoder, or both."""
    folder, family = checkpoint.folder, checkpoint.family
    context = _context_length(module, family, context_length, folder)
    _settle_rope(module)
    family.prepare(module)
    _check_finite(module, folder, chosen)
    codec = load_codec(folder)
    text = text_config(module) if family.workload == "decoder" else module.config
    notes: list[str] = []
    floats: Callable[[], Loaded] | None = None
    if checkpoint.form is not None:
        # A converted folder has the name of what it was converted from.
        packing = checkpoint.config["quantization_config"]
        quantize = str(packing.get("made_from") or checkpoint.form.methods[0])[:40]
    elif quantize:
        notes.append(quantize_module(module, quantize))
        floats = partial(load_any, folder, dtype=chosen, context_length=context_length)
    if "bfloat16" in checkpoint.dtypes and chosen == "float32":
        notes.append("bfloat16 weights are stored as float32, which is exact")
    if text is not module.config:
        notes.append("its text alone moves: no prompt has images or sounds")
    if codec is None:
        notes.append(
            f"the folder has no tokenizer ({family.tokenizer}): prompts are synthetic token ids "
            "unless given (--tokens)"
        )
    loaded = (folder.name, text, codec, module, chosen, context, hash_weights(module))
    further: dict[str, Any] = {
        "notes": tuple(notes), "family": family, "quantization": quantize, "floats": floats
    }  # fmt: skip
    if family.workload == "encoder":
        padding = getattr(module.config, "pad_token_id", None) or 0
        encoder = LoadedEncoder(*loaded, folder, batch=BATCH, padding=padding, **further)
        return settled(encoder) if family.tried else encoder
    if family.workload == "encoder_decoder":
        from tapml.models.encoder_decoder import LoadedEncoderDecoder

        both = LoadedEncoderDecoder(*loaded, folder, **further)
        return settled(both) if family.tried else both
    ends = _end_tokens(module)
    if family.tried and family.state(module.config):
        # Only a run of the class shows what its layers keep.
        family = replace(family, workload="stepped")
    model = _DECODERS[family.workload](
        *loaded, folder, end_tokens=ends, **further | {"family": family}
    )
    return settled(model) if family.tried else model


def _module(
    model: LoadedModule,
    dtype: str,
    context_length: int | None,
    given: Sequence[tuple[Array | dict[str, Array], str]],
) -> LoadedModule:
    """A plain module with the arrays that were given to run it on."""
    if context_length is not None or dtype not in ("auto", model.dtype):
        raise InputError(
            f"{model.name} is {model.dtype} as it is and takes no tokens: leave --dtype and "
            "--context out"
        )
    fitted = tuple((model.signature.fitted(arrays), text) for arrays, text in given)
    return model.of_given(fitted)


def _load_module(checkpoint: Checkpoint, dtype: str) -> Any:
    from transformers import AutoConfig

    folder = checkpoint.folder
    checkpoint.family.register()
    try:
        published = checkpoint.family.published
        if published is not None:
            made: Any = load_published(checkpoint, published, getattr(torch, dtype))
            _check_rope(made.config, folder)
            return made.requires_grad_(False).eval()
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        _check_class(config, checkpoint)
        checkpoint.family.by_weights(config, checkpoint.tensors)
        _check_rope(config, folder)
        if checkpoint.form is not None:
            config.quantization_config = checkpoint.config["quantization_config"]
            packed: Any = build_packed(
                _class_of(checkpoint),
                config,
                getattr(torch, dtype),
                checkpoint.tensors,
                checkpoint.form,
                dict(checkpoint.family.loading),
            )
            return packed.requires_grad_(False).eval()
        with torch.device("meta"):
            empty: Any = _class_of(checkpoint)(config)
        check_weights(empty, checkpoint)
        mapped = map_weights(checkpoint, empty, getattr(torch, dtype))
        if mapped is not None:
            return mapped.requires_grad_(False).eval()
        del empty
        with quiet_transformers():
            module, found = _class_of(checkpoint).from_pretrained(
                folder,
                config=config,
                dtype=getattr(torch, dtype),
                attn_implementation="eager",
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
                **dict(checkpoint.family.loading),
            )
    except InputError:
        raise
    except Exception as error:  # libraries raise errors of any class on a malformed folder
        reason = said_by(error)
        if isinstance(error, KeyError):
            reason = _of_key(error, checkpoint.config)
        raise InputError(
            f"{folder} cannot be loaded ({reason}): expected a complete model folder "
            f"of {checkpoint.family.architectures[0]}; fetch it again"
        ) from error
    # Names and shapes were checked before; transformers would initialise missing weights randomly.
    if any(found[kind] for kind in ("missing_keys", "mismatched_keys", "unexpected_keys")):
        raise InputError(f"{folder} was not loaded as it is stored ({found}): fetch it again")
    module.requires_grad_(False)
    return module.eval()


def _of_key(error: KeyError, config: Any) -> str:
    """What a name that was looked for in vain says of a configuration."""
    name, pending = next(iter(error.args), ""), [config]
    while pending:
        value = pending.pop()
        if isinstance(value, dict | list):
            pending += value.values() if isinstance(value, dict) else value
        elif value == name:
            # Of an activation or another kind.
            return f"config.json says {name!r}, which transformers does not know"
    return f"config.json has no {str(name)[:80]!r}"


def _check_class(config: Any, checkpoint: Checkpoint) -> None:
    named = _class_of(checkpoint)
    if not isinstance(config, named.config_class):
        raise InputError(
            f"{checkpoint.folder / 'config.json'} has the model_type {config.model_type!r}, which "
            f"is not that of its architecture {named.__name__}: the file belongs to two models"
        )


def _class_of(checkpoint: Checkpoint) -> Any:
    """The class that the folder names, of ``transformers`` or of tapml."""
    import transformers

    name = checkpoint.config["architectures"][0]
    own = checkpoint.family.own_class
    return own() if own is not None else getattr(transformers, name)


def _check_rope(config: Any, folder: Path) -> None:
    for each in _ropes(config):
        found = each.get("rope_type", "default")
        if found not in _ROPE_TYPES:
            raise InputError(
                f"{folder} has RoPE scaling {found!r}: expected one of {', '.join(_ROPE_TYPES)}"
            )


def _ropes(config: Any) -> list[dict[str, Any]]:
    """How positions rotate: one way for all layers, or one for each kind of layer."""
    found = getattr(config, "rope_parameters", None) or {}
    return [each for each in found.values() if isinstance(each, dict)] or [found]


def _settle_rope(module: nn.Module) -> None:
    """Remove the branch on the length from dynamic RoPE and longrope.

    It changes the frequencies beyond the length the model was made for, which the context never
    exceeds (:func:`_context_length`).
    """
    for part in module.modules():
        # A name, or (Gemma 3) one for each kind of layer.
        kind: Any = getattr(part, "rope_type", None)
        if isinstance(kind, dict):
            settled = {k: "default" if v in _OF_LENGTH else v for k, v in kind.items()}
            part.rope_type = settled  # type: ignore[assignment]
        elif kind in _OF_LENGTH:
            part.rope_type = "default"  # type: ignore[assignment]


def _context_length(module: Any, family: Family, wanted: int | None, folder: Path) -> int:
    """Rows of the cache, within the positions that the model knows."""
    decodes = family.workload == "decoder"
    config = text_config(module) if decodes else module.config
    positions = family.positions
    if decodes and family.tried and config is not module.config:
        positions = "max_position_embeddings"
    longest = int((positions and getattr(config, positions, None)) or LONGEST_CONTEXT)
    if family.tried and longest < 0:
        longest = LONGEST_CONTEXT  # As XLNet says that it has no limit.
    longest = min(longest, family.longest(module) or longest)
    for rope in _ropes(config):
        if rope.get("rope_type") == "longrope":
            # Beyond, every position would have to be computed again with other frequencies.
            longest = min(longest, int(rope["original_max_position_embeddings"]))
    if longest < SHORTEST_CONTEXT:
        raise InputError(
            f"{folder} has a context of {longest} ({positions} in config.json): expected"
            f" at least {SHORTEST_CONTEXT}"
        )
    if wanted is None:
        grows = family.workload in {"decoder", "recurrent"}
        return min(longest, DEFAULT_CONTEXT if grows else DEFAULT_SENTENCE)
    if not SHORTEST_CONTEXT <= wanted <= longest:
        raise InputError(
            f"context of {wanted} tokens for {folder.name}: expected {SHORTEST_CONTEXT} to "
            f"{longest}"
        )
    return wanted


def _check_finite(module: nn.Module, folder: Path, dtype: str) -> None:
    weights = {name for name, _ in module.named_parameters()}
    for name, value in module.state_dict().items():
        # A bound that clips nothing is infinite.
        bound = name not in weights and value.numel() == 1 and bool(torch.isinf(value).all())
        if not bound and not bool(torch.isfinite(value).all()):
            remedy = (
                "load it as float32 (--dtype float32)"
                if dtype == "float16"
                else "the checkpoint is damaged; fetch it again"
            )
            raise InputError(f"{name} of {folder.name} is not finite as {dtype}: {remedy}")


def _end_tokens(module: Any) -> frozenset[int]:
    found: set[int] = set()
    text = text_config(module)
    for config in (module.config, text, getattr(module, "generation_config", None)):
        value = getattr(config, "eos_token_id", None)
        if isinstance(value, int):
            found.add(value)
        elif isinstance(value, (list, tuple)):
            found.update(int(token) for token in value)
    return frozenset(found)
