"""What a division leaves is that of PyTorch, bit by bit."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tapml.importing.importer import import_module
from tests.importing.modules import Apply, root_module


def pairs() -> Tensor:
    """Operands and divisors ``[2, many]``: near multiples, random, and neither."""
    torch.manual_seed(0)
    odd = [(1e10, 0.3), (1.0, math.inf), (-1.0, math.inf), (math.nan, 1.0), (1.0, 0.0),
           (1.0, math.nan), (math.inf, 2.0), (-0.0, 1.0), (-6.0, 3.0), (3.0, -7.0)]  # fmt: skip
    near = torch.stack([torch.arange(1, 2001) * 0.1, torch.full((2000,), 0.1)])
    return torch.cat([near, torch.randn(2, 500) * 5, torch.tensor(odd).T], 1)


class _AreEqual(nn.Module):
    """Whether an operation has the values that PyTorch found before."""

    def __init__(self, function: Callable[[Tensor], Tensor], operands: Tensor) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("wanted", function(operands).nan_to_num(77.0))

    def forward(self, operands: Tensor) -> Tensor:
        found = self.function(operands)
        return torch.eq(torch.where(torch.isnan(found), 77.0, found), self.get_buffer("wanted"))


@pytest.mark.parametrize(
    "function", [lambda t: torch.fmod(*t), lambda t: torch.remainder(*t), lambda t: t[0] // t[1]]
)
def test_what_division_leaves_is_exact(function: Callable[[Tensor], Tensor]) -> None:
    operands = pairs()
    imported = import_module(_AreEqual(function, operands), (operands,))

    report = root_module(imported, [operands.numpy()])

    assert all(each.ratio <= 1 for each in report.compared)


def test_narrow_numbers_and_free_extents_have_a_number_as_divisor() -> None:
    rows = (torch.arange(12.0) - 4).reshape(3, 4).half()
    module = Apply(lambda t: (torch.fmod(t, 0.1), t % -0.1, t % t[:1]))
    imported = import_module(module, (rows,), dynamic=({0: torch.export.Dim("B", min=2)},))

    report = root_module(imported, [rows.numpy()])

    assert all(each.ratio <= 1 for each in report.compared)
