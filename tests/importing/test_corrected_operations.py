"""Operations that TVM's importer or its lowering gets wrong are PyTorch's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tapml.importing.importer import import_module
from tests.importing.modules import root_module


class Corrected(nn.Module):
    """Masks, rounded quotients by numbers, indices along several axes beside slices, infinities."""

    def forward(
        self, one: Tensor, other: Tensor, numbers: Tensor, rows: Tensor, at: Tensor
    ) -> tuple[Tensor, ...]:
        """Masks ``[4, 9]``, integers ``[18]``, rows ``[5, 4, 6]`` with NaN, places ``[3]``."""
        return (
            one & other, one | other, one ^ other, ~one, one == other, one * other,
            one.logical_xor(other), rows.isfinite(), numbers // 4, numbers % 4,
            torch.div(numbers, 4, rounding_mode="trunc"), numbers.float() // 0.5,
            nn.functional.one_hot(at, 5), rows[at, :, at], rows[:, at, at],
            torch.full_like(rows, -torch.inf).scatter(2, at[None, None], 1.0),
        )  # fmt: skip


def test_they_are_pytorchs() -> None:
    torch.manual_seed(3)
    rows = torch.randn(5, 4, 6)
    rows[1, 2, 3], rows[0, 0, 1] = torch.nan, torch.inf
    numbers, at = torch.arange(-9, 9), torch.tensor([0, 2, -1])
    one, other = torch.rand(4, 9) > 0.5, torch.rand(4, 9) > 0.5
    given = (one, other, numbers, rows, at.abs())
    report = root_module(import_module(Corrected(), given), [each.numpy() for each in given])
    assert all(each.ratio <= 1 for each in report.compared)
    assert sum(each.kind == "output" for each in report.compared) == 16
