"""Loss, gradient norm and accuracy of a case, step by step: what a dashboard shows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_post_hook


@dataclass
class Metrics:
    """Series with one value for each optimizer step; accuracy only of classifiers."""

    loss: list[float] = field(default_factory=list)
    gradient_norm: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)

    def series(self) -> dict[str, list[float]]:
        """By name."""
        return dict(vars(self))


@contextmanager
def measured() -> Iterator[Metrics]:
    """Measure what trains inside the block."""
    found = Metrics()
    last: dict[str, float] = {}
    backward, cross_entropy = torch.autograd.backward, functional.cross_entropy

    def run_backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        loss = tensors if isinstance(tensors, torch.Tensor) else tensors[0]
        if loss.numel() == 1:
            last["loss"] = float(loss.detach())
        return backward(tensors, *args, **kwargs)

    def run_cross_entropy(logits: torch.Tensor, target: torch.Tensor, *args: Any, **kw: Any) -> Any:
        if logits.dim() == 2 and target.dim() == 1 and torch.is_grad_enabled():
            last["accuracy"] = float((logits.detach().argmax(1) == target).float().mean())
        return cross_entropy(logits, target, *args, **kw)

    def after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        gradients = [
            each.grad.detach().double().norm()
            for group in optimizer.param_groups
            for each in group["params"]
            if each.grad is not None
        ]
        norm = float(torch.stack(gradients).norm()) if gradients else 0.0
        found.gradient_norm.append(norm)
        found.loss.append(last.get("loss", math.nan))
        if "accuracy" in last:
            found.accuracy.append(last["accuracy"])

    handle = register_optimizer_step_post_hook(after_step)
    torch.autograd.backward = run_backward
    functional.cross_entropy = run_cross_entropy  # type: ignore[assignment]
    try:
        yield found
    finally:
        handle.remove()
        torch.autograd.backward, functional.cross_entropy = backward, cross_entropy
