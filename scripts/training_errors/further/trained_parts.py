"""Models of which a part is trained, or each part in its own way."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from scripts.training_errors.further.program import STEPS, batches, net, program, rows_of, step


class _Lora(nn.Module):
    def __init__(self, base: nn.Linear, *, zero: bool = False) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.zeros(2, 8) if zero else torch.randn(2, 8) / 8)
        self.up = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.base(x) + x @ self.down.T @ self.up.T
        return found


@program("lora-both-zero", "both factors of a LoRA begin at zero, so neither learns")
def _lora_zero(seed: int, buggy: bool) -> None:
    data = batches(seed)
    model = _Lora(nn.Linear(8, 4), zero=buggy)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for x, y in data:
        step(optimizer, functional.cross_entropy(model(x), y))


@program("lora-base-trains", "the base layer of a LoRA is trained too")
def _lora_base(seed: int, buggy: bool) -> None:
    data = batches(seed)
    model = _Lora(nn.Linear(8, 4))
    if buggy:
        model.requires_grad_()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for x, y in data:
        step(optimizer, functional.cross_entropy(model(x), y))


@program("group-left-out", "a parameter group of the optimizer lacks the head")
def _groups(seed: int, buggy: bool) -> None:
    data = batches(seed)
    model = net()
    groups = [{"params": list(model[0].parameters()), "lr": 1e-3}]
    if not buggy:
        groups.append({"params": list(model[2].parameters()), "lr": 1e-2})
    optimizer = torch.optim.AdamW(groups)
    for x, y in data:
        step(optimizer, functional.cross_entropy(model(x), y))


@program("unfreeze-late", "layers are unfrozen, and the optimizer does not get them")
def _unfreeze(seed: int, buggy: bool) -> None:
    data = batches(seed)
    model = net()
    model[0].requires_grad_(False)
    optimizer = torch.optim.Adam(model[2].parameters(), lr=1e-3)
    for number, (x, y) in enumerate(data):
        if number == 3:
            model[0].requires_grad_()
            if not buggy:
                optimizer.add_param_group({"params": list(model[0].parameters())})
        step(optimizer, functional.cross_entropy(model(x), y))


@program("sparse-frozen-embedding", "rows of a sparse embedding are looked up without gradients")
def _sparse(seed: int, buggy: bool) -> None:
    torch.manual_seed(seed)
    table, head = nn.Embedding(20, 8, sparse=True), nn.Linear(8, 4)
    one = torch.optim.SparseAdam(table.parameters(), lr=1e-2)
    two = torch.optim.Adam(head.parameters(), lr=1e-2)
    for _ in range(STEPS):
        tokens, y = torch.randint(0, 20, (rows_of(seed), 5)), torch.randint(0, 4, (rows_of(seed),))
        one.zero_grad()
        two.zero_grad()
        found = table(tokens).mean(1)
        loss = functional.cross_entropy(head(found.detach() if buggy else found), y)
        loss.backward()
        one.step()
        two.step()
