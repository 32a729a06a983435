"""Models under the transforms of `torch.func`."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call, jvp, vmap
from torch.nn import functional

from scripts.training_errors.further.program import batches, net, program, step


@program("functional-old-parameters", "functional_call trains a copy of the parameters")
def _functional(seed: int, buggy: bool) -> None:
    data = batches(seed)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    frozen = {k: v.detach().clone().requires_grad_() for k, v in model.named_parameters()}
    for x, y in data:
        given: dict[str, torch.Tensor] = dict(frozen if buggy else model.named_parameters())
        step(optimizer, functional.cross_entropy(functional_call(model, given, (x,)), y))


@program("vmap-ensemble-one", "only the first model of a vmapped ensemble is in the loss")
def _ensemble(seed: int, buggy: bool) -> None:
    data = batches(seed)
    weights = [nn.Parameter(torch.randn(8, 4) / 8) for _ in range(3)]
    model = nn.ParameterList(weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in data:
        found = vmap(lambda w, x=x: x @ w)(torch.stack(list(model)))
        losses = vmap(functional.cross_entropy, (0, None))(found, y)
        step(optimizer, losses[0] if buggy else losses.sum())


@program("jvp-zero-tangent", "the tangent of a directional derivative is zero")
def _directional(seed: int, buggy: bool) -> None:
    data = batches(seed)
    model = net(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, _ in data:
        tangent = torch.zeros_like(x) if buggy else torch.randn_like(x)
        slope: torch.Tensor = jvp(model, (x,), (tangent,))[1]
        step(optimizer, functional.mse_loss(slope, tangent.sum(1, keepdim=True)))
