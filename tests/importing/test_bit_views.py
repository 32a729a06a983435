"""Views of bits as another dtype, of one size or of others, are PyTorch's."""

from __future__ import annotations

import torch
from torch import Tensor

from tapml.importing.importer import import_module
from tests.importing.modules import Apply, root_module


def views(numbers: Tensor) -> tuple[Tensor, ...]:
    """Floats ``[3, 4]``."""
    whole = numbers.view(torch.int32)
    finite = whole & 0x3BFF3BFF
    return (
        whole, finite.view(torch.float32), numbers.view(torch.int16),
        numbers.view(torch.uint8), numbers.half().view(torch.int32), whole.view(torch.int64),
        numbers.double().view(torch.int64), finite.view(torch.float16),
        numbers.view(torch.int16).view(torch.int8).view(torch.int32),
        numbers.bfloat16().view(torch.int16), (numbers > 0).view(torch.uint8),
        (whole.to(torch.uint8) & 1).view(torch.bool), finite.view(torch.int64).view(torch.float64),
        (numbers * 1.7).view(torch.int32) & 0xFF,
        (numbers.bfloat16() * 1.75).view(torch.int16),
    )  # fmt: skip


def test_they_are_pytorchs() -> None:
    torch.manual_seed(3)
    given = torch.randn(3, 4)
    imported = import_module(Apply(views), (given,))
    report = root_module(imported, [given.numpy()])
    assert all(each.ratio <= 1 for each in report.compared)
