"""Indices that cannot be negative are taken as they are, so that 32 bits are enough for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tapml.importing.importer import import_module

TABLE = torch.arange(24.0).reshape(6, 4)


class Rows(nn.Module):
    """Rows of a table at places that a function makes of numbers."""

    def __init__(self, places: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.places = places
        self.register_buffer("table", TABLE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table: torch.Tensor = self.table  # type: ignore[assignment]
        return table[self.places(x)]


@pytest.mark.parametrize(
    ("places", "counted"),
    [
        (lambda x: x.topk(2, dim=-1)[1].reshape(-1), False),
        (lambda x: x.argmax(-1).clamp(0, 5).unsqueeze(0), False),
        (lambda x: x.topk(2, dim=-1)[1].reshape(-1) - 3, True),
        (lambda x: x.long().reshape(-1).clamp(-2, 5), True),
    ],
    ids=["largest", "clamped", "shifted", "may be negative"],
)
def test_only_what_may_be_negative_is_counted_from_the_end(
    places: Callable[[torch.Tensor], torch.Tensor], counted: bool
) -> None:
    plan = import_module(Rows(places), (torch.rand(3, 6),)).plan
    assert any("where" in name for name in plan.operators) is counted
