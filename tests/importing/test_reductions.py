"""Reductions that TVM's importer lacks give PyTorch's results."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tapml.importing.importer import import_module
from tests.importing.modules import root_module


class Reductions(nn.Module):
    """Every one of them, on rows with zeros, at several axes, with and without kept extents."""

    def forward(self, rows: Tensor, holed: Tensor) -> tuple[Tensor, ...]:
        """Rows ``[3, 4, 8]``, and the same with NaN."""
        low, high = torch.aminmax(rows, dim=-1)
        least, place = torch.min(rows, 1)
        return (
            torch.amax(rows, -1),
            torch.amax(rows, (0, 2), keepdim=True),
            torch.amax(rows),
            torch.amin(rows, (-1, -2)),
            low,
            high,
            least,
            place,
            torch.prod(rows, 2),
            torch.any(rows > 1, -1),
            torch.any(rows > 1),
            torch.all(rows > -1, -1),
            torch.all(rows > -9),
            torch.count_nonzero(rows, -1),
            rows / (rows > 0).sum((0, -1), keepdim=True),
            (rows > 0).sum() - 1,
            torch.logsumexp(rows, -1),
            torch.logsumexp(rows * 100, (0, 1), keepdim=True),
            torch.nansum(holed, -1),
            torch.topk(rows, 1, sorted=False).values,
        )


def test_they_are_pytorchs() -> None:
    torch.manual_seed(5)
    rows = torch.randn(3, 4, 8)
    rows[rows.abs() < 0.3] = 0
    holed = rows.clone()
    holed[1, 2, 3] = torch.nan
    imported = import_module(Reductions(), (rows, holed))
    report = root_module(imported, (rows.numpy(), holed.numpy()))
    assert all(each.ratio <= 1 for each in report.compared)
    assert sum(each.kind == "output" for each in report.compared) == 20
