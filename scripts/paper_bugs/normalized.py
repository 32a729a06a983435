"""A convolution and BatchNorm; `FAULT` says how the ranks share statistics."""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn import functional
from torch.nn.parallel import DistributedDataParallel

FAULT = os.environ.get("TAPML_FAULT", "")


def model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )


def batch() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(24, 1, 6, 6), "y": torch.randn(24, 3)}


def step(network: Any, batch: dict[str, torch.Tensor], optimizer: Any) -> None:
    optimizer.zero_grad()
    (network(batch["x"]) - batch["y"]).square().mean().backward()
    optimizer.step()


class _LocalVariances(nn.BatchNorm2d):
    """BatchNorm over all ranks' mean, with the mean of each rank's own variance."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize channels of (samples, channels, height, width)."""
        world = dist.get_world_size()
        all_reduce: Any = functional.all_reduce
        mean = all_reduce(x.mean((0, 2, 3))) / world
        variance = all_reduce(x.var((0, 2, 3), unbiased=False)) / world
        shape = (1, -1, 1, 1)
        scaled = (x - mean.view(shape)) / (variance.view(shape) + self.eps).sqrt()
        found: torch.Tensor = scaled * self.weight.view(shape) + self.bias.view(shape)
        return found


def distribute(network: nn.Sequential, rank: int, world: int) -> nn.Module:
    if FAULT == "local variances" and world > 1:
        own: Any = network[1]
        made = _LocalVariances(4)
        made.load_state_dict(own.state_dict())
        network[1] = made.to(own.weight.dtype)
    if FAULT == "not synchronized" and world > 1:
        torch.manual_seed(rank)
        for parameter in network.parameters():
            nn.init.normal_(parameter)
        return DistributedDataParallel(network, init_sync=False)
    return DistributedDataParallel(network)
