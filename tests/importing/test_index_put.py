"""Rows that are put at, or added to, places of the first axes are PyTorch's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tapml.importing.importer import import_module
from tests.importing.modules import root_module


class Puts(nn.Module):
    """By one index of three axes, and by two; with repeated places; a number for all; by masks."""

    def forward(self, data: Tensor, at: Tensor, other: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        """Data ``[5, 4, 3]``, indices ``[3]``, and rows ``[3, 4, 3]``."""
        masked = data.clone()
        masked[:, data[0, :, 0] > 0] = rows[0, 0]
        return (
            data.index_put((at,), rows),
            data.index_put((at,), rows, accumulate=True),
            data.index_put((at, other), rows[:, 0], accumulate=True),
            data.index_put((at,), torch.zeros(())),
            data.index_put((data < 0,), torch.zeros(1)),
            masked,
            data.index_put((at, other, other), rows[:, 0, 0]),
            data.index_add(0, at, rows, alpha=2.0),
        )


def test_they_are_pytorchs() -> None:
    torch.manual_seed(0)
    data, rows = torch.randn(5, 4, 3), torch.randn(3, 4, 3)
    at, other = torch.tensor([4, 0, 2]), torch.tensor([-1, 2, 2])
    given = (data, at, other, rows)
    report = root_module(import_module(Puts(), given), [each.numpy() for each in given])
    assert sum(each.kind == "output" for each in report.compared) == 8
