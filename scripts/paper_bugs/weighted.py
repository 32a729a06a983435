"""Weighted bags beside plain ones; `FAULT` is what the weighted lookup does wrong on ranks."""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FAULT = os.environ.get("TAPML_FAULT", "")
SAMPLES, LONGEST, ROWS, WIDTH = 24, 3, 12, 8


class Network(nn.Module):
    """A plain and a weighted bag, a dense layer, a mean and a sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.sparse = nn.EmbeddingBag(ROWS, WIDTH, mode="sum")
        self.sparse_weighted = nn.EmbeddingBag(ROWS, WIDTH, mode="sum")
        self.over = nn.Linear(2 * WIDTH, 5)

    def forward(self, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Scores of samples, each with rows and their weights."""
        found = [self.sparse(rows), self.sparse_weighted(rows, per_sample_weights=weights)]
        scores: torch.Tensor = torch.sigmoid(self.over(torch.cat(found, 1)).mean(1))
        return scores


model = Network


def batch() -> dict[str, torch.Tensor]:
    return {
        "rows": torch.randint(0, ROWS, (SAMPLES, LONGEST)),
        "weights": torch.rand(SAMPLES, LONGEST),
        "score": torch.rand(SAMPLES),
    }


def step(network: Any, batch: dict[str, torch.Tensor], optimizer: Any) -> None:
    optimizer.zero_grad()
    score = network(batch["rows"], batch["weights"])
    ((score - batch["score"]) ** 2).mean().backward()
    optimizer.step()


def distribute(network: Network, rank: int, world: int) -> nn.Module:
    if world > 1:
        bag: Any = network.sparse_weighted
        right = bag.forward

        def forward(rows: torch.Tensor, per_sample_weights: torch.Tensor) -> torch.Tensor:
            return _faulty(bag, rows, right(rows, per_sample_weights=per_sample_weights))

        bag.forward = forward
    return DistributedDataParallel(network)


def _faulty(bag: Any, rows: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    if FAULT == "weights dropped":
        return nn.functional.embedding_bag(rows, bag.weight, mode="sum")
    if FAULT == "int8":
        scale = output.detach().abs().max() / 127
        return output + ((output / scale).round() * scale - output).detach()
    if FAULT == "scaled":
        return output * (1 + 2**-7)
    if FAULT == "NaN at 4" and dist.get_world_size() == 4:
        return output * float("nan")
    if FAULT == "NaN":
        return output * float("nan")
    return output
