"""Loads a Hugging Face folder of the Llama family: local files, safetensors, no remote code."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import torch
from torch import nn

from tapml.models.checkpoint import Checkpoint, inspect_checkpoint
from tapml.models.loaded import LoadedModel
from tapml.models.resolve import resolve_model
from tapml.models.text import load_codec
from tapml_targets.errors import InputError

DTypeChoice: TypeAlias = Literal["auto", "float32", "float16"]
# A cache of more rows costs every decode step; a calibration prompt needs far fewer.
DEFAULT_CONTEXT: Final = 256
SHORTEST_CONTEXT: Final = 8
_ROPE_TYPES: Final = ("default", "linear", "dynamic", "llama3", "yarn")


def load_model(
    name_or_path: str | Path,
    *,
    dtype: DTypeChoice = "auto",
    context_length: int | None = None,
) -> LoadedModel:
    """Load a zoo model or a folder.

    Parameters
    ----------
    name_or_path
        Zoo name, or path of a Hugging Face folder.
    dtype
        ``auto`` is float16 for a float16 checkpoint and float32 for float32 and bfloat16 ones
        (bfloat16 widens exactly).
    context_length
        Rows of the cache; the default is the model's own limit, at most 256.

    Raises
    ------
    InputError
        If the folder is no model of the family, is damaged, or an argument does not fit it.
    """
    folder = resolve_model(name_or_path)
    checkpoint = inspect_checkpoint(folder)
    if dtype not in ("auto", "float32", "float16"):
        raise InputError(f"unknown model dtype {dtype!r}: expected auto, float32 or float16")
    chosen = checkpoint.natural_dtype if dtype == "auto" else dtype
    module = _load_module(checkpoint, chosen)
    context = _context_length(module.config, context_length, folder)
    _settle_rope(module)
    _check_finite(module, folder, chosen)
    codec = load_codec(folder)
    notes: list[str] = []
    if "BF16" in checkpoint.dtypes and chosen == "float32":
        notes.append("bfloat16 weights are held as float32, which is exact")
    if codec is None:
        notes.append(
            "the folder has no tokenizer: prompts are made-up token ids unless some are given "
            "(--tokens)"
        )
    return LoadedModel(
        name=folder.name,
        config=module.config,
        tokenizer=codec,
        module=module,
        dtype=chosen,
        context_length=context,
        weights_hash=hash_weights(module),
        source=folder,
        end_tokens=_end_tokens(module),
        notes=tuple(notes),
    )


def hash_weights(module: nn.Module) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of a module's state, hexadecimal."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(f"{name}:{value.dtype}:{tuple(value.shape)}\n".encode())
        digest.update(value.detach().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _load_module(checkpoint: Checkpoint, dtype: str) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = checkpoint.folder
    if checkpoint.config.get("model_type") == "scan_llama":
        from tapml.models import scan_llama

        scan_llama.register()
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        _check_rope(config, folder)
        _check_weights(config, checkpoint)
        with _quiet_transformers():
            module, found = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=getattr(torch, dtype),
                attn_implementation="eager",
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
    except InputError:
        raise
    except Exception as error:  # whatever a library raises on a malformed folder
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(
            f"{folder} cannot be loaded ({reason[0][:300]}): expected a whole Hugging Face folder "
            "of the Llama family; fetch it again"
        ) from error
    # Checked by name and shape before; transformers would fill what is missing at random.
    if any(found[kind] for kind in ("missing_keys", "mismatched_keys", "unexpected_keys")):
        raise InputError(f"{folder} was not loaded as it is stored ({found}): fetch it again")
    module.requires_grad_(False)
    return module.eval()


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No progress bar and no load report: what it would say is in the error."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    verbosity = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


def _check_weights(config: Any, checkpoint: Checkpoint) -> None:
    """Compare what the configuration asks for with what the files hold, nothing allocated."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    expected = {name: tuple(value.shape) for name, value in empty.state_dict().items()}
    # Old conversions stored the rotary frequencies, which are computed.
    stored = {
        name: tensor.shape
        for name, tensor in checkpoint.tensors.items()
        if not name.endswith(".rotary_emb.inv_freq")
    }
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    both = expected.keys() & stored.keys()
    for kind, names, remedy in (
        ("missing", expected.keys() - stored.keys() - tied, "fetch the folder again"),
        (
            "mismatched",
            {name for name in both if expected[name] != stored[name]},
            "config.json and the weights belong to different models",
        ),
        (
            "unexpected",
            stored.keys() - expected.keys(),
            "the model would be computed without them; check config.json",
        ),
    ):
        if names:
            first = min(names)
            raise InputError(
                f"{checkpoint.folder} has {len(names)} {kind} weights, first {first} (expected "
                f"{expected.get(first, 'none')}, found {stored.get(first, 'none')}): {remedy}"
            )


def _check_rope(config: Any, folder: Path) -> None:
    found = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if found not in _ROPE_TYPES:
        raise InputError(
            f"{folder} has RoPE scaling {found!r}: expected one of {', '.join(_ROPE_TYPES)}"
        )


def _settle_rope(module: nn.Module) -> None:
    """Take the branch on the length out of dynamic RoPE.

    It changes the frequencies beyond the length the model was made for, and the context never is
    longer (:func:`_context_length`).
    """
    for part in module.modules():
        if getattr(part, "rope_type", None) == "dynamic":
            part.rope_type = "default"  # type: ignore[assignment]


def _context_length(config: Any, wanted: int | None, folder: Path) -> int:
    """Rows of the cache, within what the positions and the attention window allow."""
    longest = int(config.max_position_embeddings)
    kinds = getattr(config, "layer_types", None) or ()
    window = getattr(config, "sliding_window", None)
    # In a longer context rows would leave the window, which the mask input does not express.
    if window is not None and (config.model_type == "mistral" or "sliding_attention" in kinds):
        longest = min(longest, int(window))
    if longest < SHORTEST_CONTEXT:
        raise InputError(
            f"{folder} has a context of {longest} (max_position_embeddings, sliding_window in "
            f"config.json): expected at least {SHORTEST_CONTEXT}"
        )
    if wanted is None:
        return min(longest, DEFAULT_CONTEXT)
    if not SHORTEST_CONTEXT <= wanted <= longest:
        raise InputError(
            f"context of {wanted} tokens for {folder.name}: expected {SHORTEST_CONTEXT} to "
            f"{longest}"
        )
    return wanted


def _check_finite(module: nn.Module, folder: Path, dtype: str) -> None:
    for name, value in module.state_dict().items():
        if not bool(torch.isfinite(value).all()):
            remedy = (
                "load it as float32 (--dtype float32)"
                if dtype == "float16"
                else "the checkpoint is damaged; fetch it again"
            )
            raise InputError(f"{name} of {folder.name} is not finite as {dtype}: {remedy}")


def _end_tokens(module: Any) -> frozenset[int]:
    found: set[int] = set()
    for config in (module.config, getattr(module, "generation_config", None)):
        value = getattr(config, "eos_token_id", None)
        if isinstance(value, int):
            found.add(value)
        elif isinstance(value, (list, tuple)):
            found.update(int(token) for token in value)
    return frozenset(found)
