"""A small DLRM-like job (D3, figure 3) for TorchRec; `POOLING` and `BAGS` choose its tables."""

from typing import Any

import torch
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

POOLING = "SUM"
BAGS = False
ROWS = (10, 9)
DIMENSIONS = (8, 12)
NAMES = ("f0", "f1")
SAMPLES, LONGEST = 24, 3


class Collected(nn.Module):
    """Tables as a collection. Their order in its output is the plan's, so names pick them."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=f"t_{name}",
                    embedding_dim=dimension,
                    num_embeddings=rows,
                    feature_names=[name],
                    pooling=PoolingType[POOLING],
                )
                for name, rows, dimension in zip(NAMES, ROWS, DIMENSIONS, strict=True)
            ]
        )

    def forward(self, indices: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        used = _used(indices, lengths).permute(1, 0, 2)
        found = self.tables(
            KeyedJaggedTensor(
                keys=list(NAMES),
                values=indices.permute(1, 0, 2)[used],
                lengths=lengths.t().reshape(-1),
            )
        )
        return torch.cat([found[name] for name in NAMES], 1)


class Bags(nn.Module):
    """Tables as single bags."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(rows, dimension, mode="sum", include_last_offset=True)
            for rows, dimension in zip(ROWS, DIMENSIONS, strict=True)
        )

    def forward(self, indices: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        used = _used(indices, lengths)
        found = []
        for place, bag in enumerate(self.bags):
            offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths[:, place].cumsum(0)])
            found.append(bag(indices[:, place][used[:, place]], offsets))
        return torch.cat(found, 1)


class Network(nn.Module):
    """Tables, then a dense layer, a mean and a sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.features = Bags() if BAGS else Collected()
        self.sparse = nn.Identity()
        self.over = nn.Linear(sum(DIMENSIONS), 5)

    def forward(self, indices: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        # Quantized tables give a format of their own.
        found = self.sparse(self.features(indices, lengths)).to(self.over.weight.dtype)
        return torch.sigmoid(self.over(found).mean(1))


model = Network


def batch() -> dict[str, torch.Tensor]:
    """Bags may be empty."""
    return {
        "indices": torch.randint(0, min(ROWS), (SAMPLES, 2, LONGEST)),
        "lengths": torch.randint(0, LONGEST + 1, (SAMPLES, 2)),
        "score": torch.rand(SAMPLES),
    }


def optimizer(model: nn.Module) -> Any:
    return torch.optim.SGD(model.parameters(), lr=1.0)


def step(model: nn.Module, batch: dict[str, torch.Tensor], optimizer: Any) -> None:
    optimizer.zero_grad()
    score = model(batch["indices"], batch["lengths"])
    ((score - batch["score"]) ** 2).mean().backward()
    optimizer.step()


def _used(indices: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Which places of the padded indices a bag has."""
    return torch.arange(indices.shape[2]) < lengths[..., None]
