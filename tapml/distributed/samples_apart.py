"""Layers whose result depends on which samples stand together, and how to switch that off."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from tapml.distributed.results import BATCH_NORM, DROPOUT


def batch_norms(model: nn.Module) -> list[str]:
    """Names of the layers that compute statistics of their batch in training."""
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm)
    ]


def dropouts(model: nn.Module) -> list[str]:
    """Names of the layers that drop values at random in training."""
    return [
        name
        for name, module in model.named_modules()
        if (isinstance(module, _DropoutNd) and module.p > 0)
        or (isinstance(module, nn.MultiheadAttention | nn.RNNBase) and module.dropout > 0)
    ]


def switch_off(model: nn.Module, kinds: Iterable[str]) -> None:
    """Make the model compute every sample by itself, in this process, which must end after it.

    BatchNorm uses its running statistics. Dropout keeps all values, as layers and as functions.
    """
    if BATCH_NORM in kinds:
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                module.eval()
                # The job's step calls model.train().
                module.__dict__["train"] = partial(_keep_mode, module)
    if DROPOUT in kinds:
        for module in model.modules():
            if isinstance(module, _DropoutNd):
                module.p = 0.0
            elif isinstance(module, nn.MultiheadAttention | nn.RNNBase):
                module.dropout = 0.0
        _patch_functions()


def _keep_mode(module: nn.Module, mode: bool = True) -> nn.Module:
    del mode
    return module


def _patch_functions() -> None:
    def keep(input: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return input

    attention = functional.scaled_dot_product_attention

    def without_dropout(query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> torch.Tensor:
        if len(rest) > 1:
            rest = (rest[0], 0.0, *rest[2:])
        elif "dropout_p" in named:
            named["dropout_p"] = 0.0
        return attention(query, key, value, *rest, **named)

    for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout"):
        setattr(functional, name, keep)
    functional.feature_alpha_dropout = keep
    torch.dropout = keep
    functional.scaled_dot_product_attention = without_dropout
