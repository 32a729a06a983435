"""Weights that are averaged, perturbed, stored and restored."""

from __future__ import annotations

import copy
import io

import torch
from torch import nn
from torch.nn import functional

from scripts.training_errors.further.program import batches, net, program, step


@program("ema-not-restored", "EMA weights stay in the model after an evaluation")
def _ema(seed: int, buggy: bool) -> None:
    data = batches(seed)
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    average = copy.deepcopy(model.state_dict())
    for number, (x, y) in enumerate(data):
        step(optimizer, functional.cross_entropy(model(x), y))
        for name, value in model.state_dict().items():
            average[name].lerp_(value, 0.1)
        if number % 3 == 2:
            kept = copy.deepcopy(model.state_dict())
            model.load_state_dict(average)
            model.eval()
            with torch.no_grad():
                model(x)
            model.train()
            if not buggy:
                model.load_state_dict(kept)


@program("ema-never-updated", "an EMA model is never updated")
def _ema_frozen(seed: int, buggy: bool) -> None:
    data = batches(seed)
    model = net()
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for x, y in data:
        step(optimizer, functional.cross_entropy(model(x), y))
        if not buggy:
            average.update_parameters(model)
        with torch.no_grad():
            average(x)


@program("swa-stale-statistics", "the norms of an averaged model keep their first statistics")
def _swa(seed: int, buggy: bool) -> None:
    data = batches(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in data:
        step(optimizer, functional.cross_entropy(model(x), y))
        average.update_parameters(model)
    if not buggy:
        torch.optim.swa_utils.update_bn([x for x, _ in data], average)
    average.eval()
    with torch.no_grad():
        average(data[0][0])


@program("sam-not-undone", "SAM's perturbation is not undone before the step")
def _sam(seed: int, buggy: bool) -> None:
    data = batches(seed)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in data:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        parameters = list(model.parameters())
        slopes = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters]
        norm = torch.stack([each.norm() for each in slopes]).norm()
        with torch.no_grad():
            before = [each.clone() for each in parameters]
            for each, slope in zip(parameters, slopes, strict=True):
                each.add_(0.05 * slope / norm)
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        if not buggy:
            with torch.no_grad():
                for each, old in zip(parameters, before, strict=True):
                    each.copy_(old)
        optimizer.step()


@program("resume-fresh-optimizer", "a resumed run does not load its weights")
def _resume(seed: int, buggy: bool) -> None:
    data = batches(seed)
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in data[:4]:
        step(optimizer, functional.cross_entropy(model(x), y))
    stored = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, stored)
    stored.seek(0)
    found = torch.load(stored)
    model = net()
    if not buggy:
        model.load_state_dict(found["model"])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    optimizer.load_state_dict(found["optimizer"])
    for x, y in data[4:]:
        step(optimizer, functional.cross_entropy(model(x), y))


@program("early-stop-last-weights", "early stopping keeps the last weights, not the best")
def _early(seed: int, buggy: bool) -> None:
    data = batches(seed)
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    best, kept = float("inf"), copy.deepcopy(model.state_dict())
    for x, y in data:
        model.train()
        step(optimizer, functional.cross_entropy(model(x), y))
        model.eval()
        with torch.no_grad():
            loss = functional.cross_entropy(model(data[0][0]), data[0][1]).item()
        if loss < best:
            best, kept = loss, copy.deepcopy(model.state_dict())
    if not buggy:
        model.load_state_dict(kept)
    torch.save(model.state_dict(), io.BytesIO())
