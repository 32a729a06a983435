"""A tiny Llama with many unique operators: every layer has a different MLP and number of heads.

No checkpoint of the family is like that, so it is built in torch, saved as safetensors, and passed
to a session instead of the loader's model. Sizes are tiny, to measure how tapml scales with the
number of operators.
"""

from __future__ import annotations

import json
from copy import copy
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP

from tapml.models.families import architectures
from tapml.models.loaded import LoadedModel
from tapml.models.weights_hash import hash_weights
from tapml.offload import rooted_reference
from tapml.offload.session import OffloadSession, SessionResult
from tapml.runs.events import Watcher
from tapml.session.settings import Settings

HIDDEN: Final = 32
HEAD_SIZE: Final = 8
KV_HEADS: Final = 1
CONTEXT: Final = 16
VOCABULARY: Final = 64


def make_session(
    folder: Path, model_folder: Path, layers: int, device: str, watcher: Watcher
) -> SessionResult:
    """Run a session of such a model, one operator after the other."""
    model = make_model(model_folder, layers)
    settings = Settings(
        model=str(model_folder),
        target="opencl",
        device=device,
        dtype="float32",
        context_length=CONTEXT,
        tokens=("1 2 3 4",),
        new_tokens=2,
    )
    with patch.object(rooted_reference, "load_any", lambda *_, **__: model):
        return OffloadSession.create(folder, settings).run(watcher)


def make_model(folder: Path, layers: int) -> LoadedModel:
    """Build the model with random weights, save it to `folder`, and load it."""
    torch.manual_seed(0)
    config = _config(layers)
    module = LlamaForCausalLM(config)
    for index, layer in enumerate(module.model.layers):
        own = copy(config)
        # Bypass the configuration's validation, which does not allow this.
        vars(own).update(num_attention_heads=1 + index, intermediate_size=HIDDEN + index + 1)
        layer.self_attn = LlamaAttention(own, index)
        layer.mlp = LlamaMLP(own)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.1)
    module.requires_grad_(False)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: value.contiguous() for name, value in module.state_dict().items()},
        folder / "model.safetensors",
    )
    text = json.dumps(config.to_dict() | {"architectures": ["LlamaForCausalLM"]})
    (folder / "config.json").write_text(text, encoding="utf-8")
    return LoadedModel(
        name=folder.name,
        config=config,
        tokenizer=None,
        family=architectures()["LlamaForCausalLM"],
        module=module.eval(),
        dtype="float32",
        context_length=CONTEXT,
        weights_hash=hash_weights(module),
        source=folder,
    )


def _config(layers: int) -> Any:
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN,
        num_hidden_layers=layers,
        num_attention_heads=1,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_SIZE,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
