"""Shards a model with `fully_shard`: blocks first, then the root."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

if TYPE_CHECKING:
    from tapml.distributed.job_file import Job


def distribute(model: nn.Module, job: Job, rank: int, world: int, **options: str) -> nn.Module:
    """Shard every block by itself, as the library's tutorial does, and the rest with the root."""
    del job, rank, options
    mesh = init_device_mesh("cpu", (world,))
    for block in blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def blocks(model: nn.Module) -> list[nn.Module]:
    """The root's children, items of lists for lists; none that shares a parameter with another."""
    children: list[nn.Module] = []
    for child in model.children():
        # A list has no forward of its own, which sharding needs.
        has_items = isinstance(child, nn.ModuleList | nn.ModuleDict)
        children += child.children() if has_items else [child]
    blocks = list(dict.fromkeys(children))
    owners = Counter(parameter for block in blocks for parameter in set(block.parameters()))
    own = {parameter for _, parameter in model.named_parameters(recurse=False)}
    return [
        block
        for block in blocks
        if any(True for _ in block.parameters())
        and all(owners[each] == 1 and each not in own for each in block.parameters())
    ]
