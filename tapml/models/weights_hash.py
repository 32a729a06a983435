"""A hash of a module's weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import nn

from tapml.models.packed.modules import Packed


def hash_weights(module: nn.Module) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of a module's state, hexadecimal.

    What packed weights mean is part of it: the same codes may be other numbers.
    """
    packed = "".join(
        f"{name}:{part.bits}:{part.zero}\n"
        for name, part in module.named_modules()
        if isinstance(part, Packed)
    )
    return hash_tensors(module.state_dict(), packed)


def hash_tensors(tensors: Mapping[str, torch.Tensor], meaning: str = "") -> str:
    """The same of tensors by name; `meaning` says what their bytes mean."""
    digest = hashlib.sha256(meaning.encode())
    for name, value in sorted(tensors.items()):
        digest.update(f"{name}:{value.dtype}:{tuple(value.shape)}\n".encode())
        flat = value.detach().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
