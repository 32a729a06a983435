"""A folder with packed weights in tapml's own layout, made from a file of another kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from tapml.models.packed.formats.inner import LAYERS, METHOD
from tapml.models.packed.weight import PackedWeight
from tapml.models.tensor_file import write_tensors


def write_packed_folder(
    folder: Path,
    config: Mapping[str, Any],
    packed: Mapping[str, PackedWeight],
    floats: Mapping[str, Tensor],
    *,
    made_from: str,
    tokenizer: str | None,
    tokenizer_config: Mapping[str, Any] | None = None,
) -> None:
    """Write ``config.json``, ``model.safetensors`` and, if there is one, the tokenizer's files.

    Parameters
    ----------
    config
        The model's configuration, without a ``quantization_config``.
    packed
        Packed layers by path.
    floats
        All other weights by name.
    made_from
        What it is called in reports.
    tokenizer, tokenizer_config
        Content of ``tokenizer.json`` and of ``tokenizer_config.json``.
    """
    tensors: dict[str, np.ndarray[Any, Any]] = {n: t.numpy() for n, t in floats.items()}
    layers: dict[str, dict[str, int]] = {}
    for path, weight in packed.items():
        tensors |= {f"{path}.{name}": each.numpy() for name, each in weight.tensors().items()}
        layers[path] = {"bits": weight.bits, "zero": weight.zero}
    packing = {"quant_method": METHOD, "made_from": made_from, LAYERS: layers}
    # Without packed layers it is a folder of floats as any other.
    quantization = {"quantization_config": packing} if packed else {}
    (folder / "config.json").write_text(
        json.dumps({**config, **quantization}, indent=1), encoding="utf-8"
    )
    if tokenizer is not None:
        (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    if tokenizer is not None and tokenizer_config is not None:
        content = json.dumps(tokenizer_config, indent=1)
        (folder / "tokenizer_config.json").write_text(content, encoding="utf-8")
    names = {name: each.dtype.name for name, each in tensors.items()}
    write_tensors(folder / "model.safetensors", tensors, names)
