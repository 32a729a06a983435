"""Losses beyond a classifier's: of noise, of codes, of views, of a teacher, of two tasks."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional

from scripts.training_errors.further.program import Encoder, batches, net, program, rows_of, step


@program("diffusion-one-noise", "a diffusion model sees one noise in every step")
def _diffusion(seed: int, buggy: bool) -> None:
    data = batches(seed)
    model = net(9, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fixed = torch.randn(rows_of(seed), 8)
    for x, _ in data:
        noise = fixed if buggy else torch.randn_like(x)
        share = torch.rand(len(x), 1)
        mixed = (1 - share).sqrt() * x + share.sqrt() * noise
        step(optimizer, functional.mse_loss(model(torch.cat([mixed, share], 1)), noise))


class _Vae(nn.Module):
    def __init__(self, *, detached: bool) -> None:
        super().__init__()
        self.encode, self.decode, self.detached = nn.Linear(8, 6), nn.Linear(3, 8), detached

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        middle, spread = self.encode(x).chunk(2, 1)
        if self.detached:
            middle, spread = middle.detach(), spread.detach()
        drawn = middle + (0.5 * spread).exp() * torch.randn_like(spread)
        divergence = 0.5 * (middle**2 + spread.exp() - spread - 1).sum(1).mean()
        return self.decode(drawn), divergence


@program("vae-detached", "a VAE's encoder is cut off from its loss")
def _vae(seed: int, buggy: bool) -> None:
    data = batches(seed)
    model = _Vae(detached=buggy)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, _ in data:
        found, divergence = model(x)
        step(optimizer, functional.mse_loss(found, x) + 0.1 * divergence)


@program("contrastive-same-view", "both views of a contrastive pair are the same")
def _contrastive(seed: int, buggy: bool) -> None:
    data = batches(seed)
    model = Encoder(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, _ in data:
        first = x + 0.1 * torch.randn_like(x)
        second = first if buggy else x + 0.1 * torch.randn_like(x)
        scores = functional.normalize(model(first)) @ functional.normalize(model(second)).T
        step(optimizer, functional.cross_entropy(scores / 0.1, torch.arange(len(x))))


@program("self-supervised-no-stop", "the target branch of BYOL gets gradients")
def _byol(seed: int, buggy: bool) -> None:
    data = batches(seed)
    online, predictor = net(8, 8), nn.Linear(8, 8)
    target = copy.deepcopy(online)
    optimizer = torch.optim.SGD([*online.parameters(), *predictor.parameters()], lr=0.1)
    for x, _ in data:
        found = predictor(online(x + 0.1 * torch.randn_like(x)))
        with torch.set_grad_enabled(buggy):
            wanted = target(x + 0.1 * torch.randn_like(x))
        step(optimizer, 1 - functional.cosine_similarity(found, wanted).mean())
        with torch.no_grad():
            for one, other in zip(target.parameters(), online.parameters(), strict=True):
                one.lerp_(other, 0.1)


def _distil(seed: int, *, evaluates: bool = True, frozen: bool = True) -> None:
    data = batches(seed)
    teacher = Encoder(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
    student = net()
    if evaluates:
        teacher.eval()
    held = list(student.parameters()) + ([] if frozen else list(teacher.parameters()))
    optimizer = torch.optim.SGD(held, lr=0.1, weight_decay=1e-2)
    for x, y in data:
        with torch.set_grad_enabled(not frozen):
            soft = teacher(x).softmax(1)
        found = student(x)
        loss = functional.cross_entropy(found, y) + functional.cross_entropy(found, soft)
        step(optimizer, loss)


@program("distil-teacher-trains", "a teacher of a distillation is in training mode")
def _distil_mode(seed: int, buggy: bool) -> None:
    _distil(seed, evaluates=not buggy)


@program("distil-teacher-moves", "a teacher of a distillation is in the optimizer")
def _distil_moves(seed: int, buggy: bool) -> None:
    _distil(seed, frozen=not buggy)


class _Tasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(self.trunk(x))
        return self.one(hidden), self.two(hidden)


@program("multi-task-lost-loss", "one of two losses is left out")
def _multi_task(seed: int, buggy: bool) -> None:
    data = batches(seed)
    model = _Tasks()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in data:
        one, two = model(x)
        loss = functional.cross_entropy(one, y)
        if not buggy:
            loss = loss + functional.mse_loss(two[:, 0], x.sum(1))
        step(optimizer, loss)
