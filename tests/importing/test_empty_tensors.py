"""Tensors without elements, and results that no operation made, are what PyTorch says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tapml as tml
from tapml.importing.importer import import_module
from tests.conftest import RequireDevice

ROWS, NONE, TABLE = torch.rand(2, 3), torch.zeros(3, 0), torch.rand(3, 4)


class OfNothing(nn.Module):
    """Sums over no elements, and operations that TVM cannot lower where an extent is 0."""

    def forward(self, rows: Tensor, none: Tensor, table: Tensor) -> tuple[Tensor, ...]:
        """Rows ``[2, 3]``, none ``[3, 0]``, a table ``[3, 4]``."""
        return (
            none.sum(1), none.prod(1), none.mean(1), (none > 0).any(1), (none > 0).all(1),
            rows[:, :0] @ none.T[:, :2], none.cumsum(1), none.sort(1)[1], rows[:, 3:3] + 1,
            torch.cat((none, table), 1), table.gather(1, none.long()),
        )  # fmt: skip


class Returned(nn.Module):
    """An input, a view of one, a constant, and an operator's result that is returned twice."""

    def forward(self, rows: Tensor, none: Tensor, table: Tensor) -> tuple[Tensor, ...]:
        """As of :class:`OfNothing`."""
        made = rows + 1
        return rows, table.view(2, 6), torch.arange(3), made, none, made


@pytest.mark.parametrize("module", [OfNothing(), Returned()])
def test_a_device_gives_what_pytorch_gives(
    module: nn.Module, require_device: RequireDevice
) -> None:
    require_device("opencl")
    report = tml.validate(module, (ROWS, NONE, TABLE), target=tml.opencl())
    assert report.passed, report
    for found, expected in zip(report.outputs, module(ROWS, NONE, TABLE), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_one_tensor_that_is_returned_as_it_is_takes_one_operator() -> None:
    plan = import_module(nn.Identity(), (ROWS,)).plan
    (entry,) = plan.entries.values()
    assert [each.operator for each in entry.calls] == ["copy"]
    assert entry.outputs != entry.inputs
