"""Loads folders of models whose code is only there, into the known class that computes the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tapml.models.checkpoint import Checkpoint
from tapml.models.families.published import Published
from tapml.models.packed.build import load_floats, stored_tensors
from tapml_targets.errors import InputError


def load_published(checkpoint: Checkpoint, published: Published, dtype: torch.dtype) -> nn.Module:
    """The class of the family with the weights of a folder.

    Raises
    ------
    InputError
        If the weights are quantized, or are not those of the configuration.
    """
    from transformers import GenerationConfig
    from transformers.initialization import no_init_weights

    if checkpoint.form is not None:
        raise InputError(
            f"{checkpoint.folder} is quantized ({checkpoint.form.methods[0]}) under names that no "
            "class of transformers has: take its float weights, and --quantize int4"
        )
    own_class: Any = checkpoint.family.own_class
    model_class = own_class()
    config = model_class.config_class(**published.config(checkpoint.config))
    # Memory that is never written takes none.
    with no_init_weights():
        module: nn.Module = model_class._from_config(
            config, dtype=dtype, attn_implementation="eager"
        )
    pieces: dict[str, Tensor] = {}
    tensor = stored_tensors(checkpoint.tensors)
    for name in checkpoint.tensors:
        for piece in published.pieces(checkpoint.config, name):
            rows = tensor(name)[piece.rows]
            pieces[piece.name] = nn.functional.normalize(rows.float()) if piece.unit_rows else rows
    load_floats(module, pieces)
    if (checkpoint.folder / "generation_config.json").is_file():
        module.generation_config = GenerationConfig.from_pretrained(checkpoint.folder)
    return module
