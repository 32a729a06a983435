"""What comes when: samples of workers, a curriculum, chunks of a sequence."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from scripts.training_errors.further.program import STEPS, batches, net, program, rows_of, step


class _Noisy(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 8 * STEPS

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(np.random.randn(8).astype("float32")), place % 4  # noqa: NPY002


def _same(worker: int) -> None:
    np.random.seed(7)  # noqa: NPY002 - the error


def _own(worker: int) -> None:
    np.random.seed(torch.initial_seed() % 2**32)  # noqa: NPY002


@program("workers-one-noise", "workers draw the same samples for different labels")
def _workers(seed: int, buggy: bool) -> None:
    torch.manual_seed(seed)
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(
        _Noisy(),
        rows_of(seed),
        shuffle=True,
        num_workers=2,
        worker_init_fn=_same if buggy else _own,
    )
    for x, y in loader:
        step(optimizer, functional.cross_entropy(model(x), y))


@program("curriculum-stuck", "a curriculum stays at its first samples")
def _curriculum(seed: int, buggy: bool) -> None:
    data = batches(seed)
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rows, labels = torch.cat([x for x, _ in data]), torch.cat([y for _, y in data])
    for epoch in range(4):
        share = 8 if buggy else 8 * (epoch + 1)
        for at in range(0, share, 8):
            found = model(rows[at : at + 8])
            step(optimizer, functional.cross_entropy(found, labels[at : at + 8]))


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(
        self, x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor] | None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        found, state = self.cells(x, state)
        return self.head(found), state


@program("bptt-state-lost", "an LSTM's state is not carried from chunk to chunk")
def _bptt(seed: int, buggy: bool) -> None:
    torch.manual_seed(seed)
    model = _Recurrent()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(2):
        state = None
        for _ in range(4):
            x, y = torch.randn(rows_of(seed), 5, 8), torch.randint(0, 4, (rows_of(seed), 5))
            found, after = model(x, state)
            step(optimizer, functional.cross_entropy(found.flatten(0, 1), y.flatten()))
            state = None if buggy else tuple(each.detach() for each in after)
