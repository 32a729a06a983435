"""Rows that a mask picks are exported as all rows, with the module's own numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tapml.importing.exporting import EntryDescription, export_program
from tapml_targets.errors import UnsupportedOperatorError


class _Of(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, rows: Tensor) -> Tensor:
        """Of ``[rows, 4]``."""
        return self.function(rows)


def exported(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    rows = torch.export.Dim("rows", min=2, max=99)
    found: Callable[..., Tensor] = export_program(
        EntryDescription(
            "forward", _Of(function), (torch.ones(3, 4),), ("rows",), dynamic_shapes=({0: rows},)
        )
    ).module()
    return found


def updated(rows: Tensor) -> Tensor:
    mask, result = rows[:, 0] > 0, rows.clone()
    result[mask] += rows[mask] * 2
    return result


def put_back(rows: Tensor) -> Tensor:
    mask, result = rows > 0, torch.zeros_like(rows)
    result[mask] = torch.tanh(rows[mask])
    return result


def added(rows: Tensor) -> Tensor:
    (places,) = torch.where(rows[:, 1] < 0)
    return torch.ones_like(rows).index_add_(0, places, rows[places].softmax(dim=-1))


def by_places(rows: Tensor) -> Tensor:
    places, result = (rows[:, 1] < 0).nonzero(), rows.clone()
    result[places[:, 0]] = rows[places[:, 0]].exp()
    return result


def summed(rows: Tensor) -> Tensor:
    mask = rows[:, 0] > 0
    return rows[mask].sum(0) + rows[mask].mean()


@pytest.mark.parametrize("function", [updated, put_back, added, by_places, summed])
def test_rows_of_a_mask_have_the_numbers_of_the_module(
    function: Callable[[Tensor], Tensor],
) -> None:
    given = torch.randn(7, 4, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(exported(function)(given), function(given))


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda rows: rows[rows[:, 0] > 0].std(0), "std of rows that a mask picks"),
        (lambda rows: rows * rows[rows[:, 0] > 0].norm(1), "norm of rows"),
        (lambda rows: rows * rows[rows[:, 0] > 0].view(-1, 2).sum(), "view of rows"),
        (lambda rows: rows[rows[:, 0] > 0].flip(0).sum(0), "flip of rows"),
        (lambda rows: torch.unique(rows.long()).float(), "unique gives as many numbers"),
    ],
)
def test_what_needs_their_number_is_refused_with_its_line(
    function: Callable[[Tensor], Tensor], what: str
) -> None:
    with pytest.raises(
        UnsupportedOperatorError, match=rf"importing/test_masked_rows\.py:\d+: {what}"
    ):
        exported(function)


def test_rows_of_a_mask_are_no_output() -> None:
    with pytest.raises(UnsupportedOperatorError, match="an output has as many rows as a mask"):
        exported(lambda rows: rows[rows[:, 0] > 0] * 2)
