"""Shifts of integers give PyTorch's results, also by more than the width of their type."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tapml.importing.importer import import_module
from tests.importing.modules import root_module


class Shifts(nn.Module):
    """Both directions, by numbers and by tensors."""

    def forward(
        self, values: Tensor, amounts: Tensor, small: Tensor, by: Tensor
    ) -> tuple[Tensor, ...]:
        """Int32 ``[n]`` twice, and bytes twice."""
        return (
            values << 3,
            values >> 2,
            values << 40,
            values >> 40,
            values << amounts,
            values >> amounts,
            torch.bitwise_left_shift(small, 1),
            torch.bitwise_right_shift(small, 3),
            small >> 8,
            small >> by,
        )


def test_they_are_pytorchs() -> None:
    values = torch.tensor([-7, 0, 5, 1 << 29, -(1 << 31)], dtype=torch.int32)
    amounts = torch.tensor([0, 31, 32, 1, -1], dtype=torch.int32)
    small = torch.tensor([1, 127, 128, 255], dtype=torch.uint8)
    by = torch.tensor([0, 7, 8, 40], dtype=torch.uint8)
    given = (values, amounts, small, by)
    imported = import_module(Shifts(), given)
    report = root_module(imported, [each.numpy() for each in given])
    assert sum(each.kind == "output" for each in report.compared) == 10
