"""Loads models: from a Hugging Face folder, or one that ships with tapml.

Importing this package imports neither torch nor transformers; loading a model does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tapml.models.entries import EntryModule, StateSpecification
    from tapml.models.huggingface import load_model
    from tapml.models.inputs import entry_for, entry_inputs, state_names
    from tapml.models.loaded import LoadedModel
    from tapml.models.prompts import (
        Prompt,
        calibration_prompts,
        prompt_from_text,
        prompt_from_tokens,
    )
    from tapml.models.resolve import resolve_model, zoo_names

__all__ = [
    "EntryModule",
    "LoadedModel",
    "Prompt",
    "StateSpecification",
    "calibration_prompts",
    "entry_for",
    "entry_inputs",
    "load_model",
    "prompt_from_text",
    "prompt_from_tokens",
    "resolve_model",
    "state_names",
    "zoo_names",
]

_HOME = {
    "EntryModule": "entries",
    "StateSpecification": "entries",
    "load_model": "huggingface",
    "entry_for": "inputs",
    "entry_inputs": "inputs",
    "state_names": "inputs",
    "LoadedModel": "loaded",
    "Prompt": "prompts",
    "calibration_prompts": "prompts",
    "prompt_from_text": "prompts",
    "prompt_from_tokens": "prompts",
    "resolve_model": "resolve",
    "zoo_names": "resolve",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
