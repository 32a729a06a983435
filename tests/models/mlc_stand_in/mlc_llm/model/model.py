"""Definitions by model type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import llama, recurrent


@dataclass(frozen=True)
class Model:
    """A definition: its configuration, its module, and loaders by kind of source."""

    config: Any
    model: Any
    source: dict[str, Any]


MODELS = {
    "llama": Model(llama.Configuration, llama.Llama, {"huggingface-safetensor": llama.mapping}),
    "rwkv": Model(recurrent.Configuration, recurrent.Recurrent, {}),
}
