"""Operations whose meaning depends on their operands' dtypes compute what PyTorch computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tapml.importing.importer import import_module
from tests.importing.modules import root_module

WHOLE, REAL = torch.tensor([-7, 7, 3, -1]), torch.tensor([2.0, -2.0, 1.5, -3.5])
SPECIAL = torch.tensor([2.0, -2.0, torch.nan, torch.inf])
MODES = ("floor", "trunc", None)


class Quotients(nn.Module):
    """Integers and floats, by tensors and by numbers, rounded in each way."""

    def forward(self, whole: Tensor, real: Tensor) -> tuple[Tensor, ...]:
        """Of ``[4]`` each."""
        pairs: tuple[tuple[Any, Any], ...] = (
            (whole, real),
            (whole, whole + 9),
            (whole, 2),
            (whole, 2.5),
        )
        rounded = (torch.div(*pair, rounding_mode=mode) for pair in pairs for mode in MODES)
        return (*rounded, real // 2, whole // 4)


class Mixed(nn.Module):
    """Integers and masks beside floating-point numbers, tensors and not."""

    def forward(self, whole: Tensor, real: Tensor) -> tuple[Tensor, ...]:
        """Of ``[4]`` each, the last of ``[8]``."""
        mask, steps = real > 0, torch.arange(4)
        return (
            whole * 0.5, whole + 0.5, whole - 0.5, 0.5 - whole, -steps * 9.2 / 8, steps + 0.25,
            whole * real, whole + real, torch.add(whole, real, alpha=2),
            torch.sub(real, whole, alpha=0.5), torch.rsub(real, 2, alpha=3), 2.5 * mask, mask + 2,
            whole > 2.5, whole == 0.5, whole != -0.5, whole <= -0.5, whole <= 2.5,
            whole < real, mask > 0.5, whole.clamp(min=0.5), whole.clamp(-1.5, 2.5),
            whole.clamp(min=real), torch.maximum(whole, real), whole.remainder(2.5),
            torch.fmod(whole, 2.5), torch.where(mask, whole, 0.5), real.masked_fill(mask, 3),
            whole.abs() ** 0.5, torch.stack([whole, real])[0] * 2, torch.cat([whole, real]),
        )  # fmt: skip


class Masks(nn.Module):
    """Operators on the bits of masks, their products, and comparisons with themselves."""

    def forward(self, whole: Tensor, real: Tensor) -> tuple[Tensor, ...]:
        """Of ``[4]`` each."""
        one, other = whole > 0, real > 0
        return (
            one & other, one | other, one ^ other, ~one, one * other, one == other, one != other,
            one == whole, torch.eq(one, False), one < other, torch.maximum(one, other),
            torch.logical_xor(one, other), torch.isfinite(real), torch.eq(real, real),
        )  # fmt: skip


class Picked(nn.Module):
    """Indices along several axes that belong together, side by side and apart."""

    def forward(self, whole: Tensor, real: Tensor) -> tuple[Tensor, ...]:
        """Of ``[4]`` each."""
        table = torch.outer(whole.abs(), whole).reshape(2, 2, 4) * torch.ones(3, 1, 1, 1)
        first, second = whole.abs() % 2, whole.abs() % 3 % 2
        return table[:, first, second], table[first, :, second], table[first, :, :, second]


@pytest.mark.parametrize(
    ("module", "real"), [(Quotients(), REAL), (Mixed(), REAL), (Masks(), SPECIAL), (Picked(), REAL)]
)
def test_every_result_is_that_of_pytorch(module: nn.Module, real: Tensor) -> None:
    report = root_module(import_module(module, (WHOLE, real)), [WHOLE.numpy(), real.numpy()])
    outputs = [each for each in report.compared if each.kind == "output"]
    assert len(outputs) == len(module(WHOLE, real))
