"""Fewer bits and less memory: autocast, quantization, checkpointing."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from scripts.training_errors.further.program import batches, net, program, step


def _scaled(seed: int, *, unscales: bool = True, casts: bool = True) -> None:
    data = batches(seed)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for x, y in data:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=casts):
            loss = functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if unscales:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@program("amp-clips-scaled", "gradients are clipped before they are unscaled")
def _amp_scaled(seed: int, buggy: bool) -> None:
    _scaled(seed, unscales=not buggy)


@program("amp-disabled", "autocast is switched off by a flag")
def _amp_off(seed: int, buggy: bool) -> None:
    _scaled(seed, casts=not buggy)


class _Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> torch.Tensor:
        return grad


class _Quantized(nn.Module):
    def __init__(self, *, straight: bool) -> None:
        super().__init__()
        self.one, self.two, self.straight = nn.Linear(8, 16), nn.Linear(16, 4), straight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.one(x)
        hidden = _Sign.apply(hidden) if self.straight else hidden.sign()
        found: torch.Tensor = self.two(hidden)
        return found


@program("quantized-no-straight-through", "rounding without a straight-through gradient")
def _quantized(seed: int, buggy: bool) -> None:
    data = batches(seed)
    model = _Quantized(straight=not buggy)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in data:
        step(optimizer, functional.cross_entropy(model(x), y))


class _Blocks(nn.Module):
    def __init__(self, *, cut: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.1)) for _ in range(3)
        )
        self.head, self.cut = nn.Linear(8, 4), cut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # The reentrant kind gives no gradient for an input that needs none.
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.cut)
        found: torch.Tensor = self.head(x)
        return found


@program("checkpoint-reentrant", "reentrant checkpointing cuts off the blocks below")
def _checkpointing(seed: int, buggy: bool) -> None:
    data = batches(seed)
    model = _Blocks(cut=buggy)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in data:
        step(optimizer, functional.cross_entropy(model(x), y))
