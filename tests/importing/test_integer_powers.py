"""Powers of integers by integers are PyTorch's, also where they wrap and below zero."""

from __future__ import annotations

import pytest
import torch

from tapml.importing.importer import import_module
from tapml.importing.integer_powers import integer_powers
from tests.importing.modules import root_module

_power = integer_powers()[torch.ops.aten.pow.Tensor_Tensor]


@pytest.mark.parametrize(
    "kind", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str
)
def test_every_integer_is_a_base_and_an_exponent(kind: torch.dtype) -> None:
    numbers = torch.arange(0 if kind == torch.uint8 else -9, 120).to(kind)
    bases, exponents = torch.meshgrid(numbers, numbers, indexing="ij")
    torch.testing.assert_close(_power(bases, exponents), torch.pow(bases, exponents))


def test_an_exponent_of_many_digits_wraps_as_pytorchs_does() -> None:
    bases = torch.tensor([3, 5, -7, 2, -1])
    exponents = torch.tensor([2**40 + 5, 70_000, 12_345_678_901, 63, 2**62 + 1])
    torch.testing.assert_close(_power(bases, exponents), torch.pow(bases, exponents))


class Powers(torch.nn.Module):
    """Of a tensor, and of a number by integers and by a mask."""

    def forward(self, base: torch.Tensor, exponent: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Integers ``[n]``."""
        return base**exponent, 2 ** exponent.abs(), 2 ** (exponent > 0)


def test_a_plan_has_them() -> None:
    given = torch.tensor([-3, -1, 0, 1, 2, 7]), torch.tensor([3, -5, 0, -9, 62, 70])
    report = root_module(import_module(Powers(), given), [each.numpy() for each in given])
    assert all(each.ratio <= 1 for each in report.compared)
