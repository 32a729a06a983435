"""Rows that a mask picks are exported as all rows, with the module's own numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


def exported(
    function: Callable[[Tensor], Tensor], *, takes_branches: bool = False
) -> Callable[..., Tensor]:
    rows = torch.export.Dim("rows", min=2, max=99)
    found: Callable[..., Tensor] = export_program(
        EntryDescription(
            "forward",
            _Of(function),
            (torch.ones(3, 4),),
            ("rows",),
            dynamic_shapes=({0: rows},),
            takes_branches=takes_branches,
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


def kept_axes(rows: Tensor) -> Tensor:
    picked: Any = rows[rows[:, 0] > 0]
    of_axes: Tensor = picked.mean((0,), keepdim=True) + picked.sum(axis=0) / picked.mean((0, 1))
    return of_axes


def of_their_own_shape(rows: Tensor) -> Tensor:
    mask, result = rows[:, 0] > 0, rows.clone()
    count, width = rows[mask].shape
    result[mask] = rows[mask].view(count, 2, 2).reshape(count, width) + torch.ones(count, 1)
    return result


def looked_up(rows: Tensor) -> Tensor:
    """Numbers of other rows are no places."""
    numbers, result = torch.where(rows[:, 0] > 0, 1, -100), rows.clone()
    mask, table = numbers >= 0, torch.arange(8.0).view(2, 4)
    result[mask] = table[numbers[mask]] + nn.functional.embedding(numbers[mask], table)
    return result


def selected(rows: Tensor) -> Tensor:
    """Of a mask that is broadcast."""
    return rows + torch.masked_select(rows, rows[0] > 0).mean()


@pytest.mark.parametrize(
    "function",
    [updated, put_back, added, by_places, summed, kept_axes, of_their_own_shape, looked_up,
     selected],
)  # fmt: skip
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
        (lambda rows: rows[rows[:, 0] > 0].norm(1, 0), "norm of rows"),
        (lambda rows: rows + rows[:, 1][rows[:, 0] > 0][..., -1], "an index of one of them"),
        (lambda rows: (rows[:, 1][rows[:, 0] > 0] * rows[:, 2:3]).sum(), "mul of rows"),
        (lambda rows: rows[:, torch.where(rows[0] > 0)[0]].sum(1), "such an index"),
        (lambda rows: rows / rows[rows[:, 0] > 0].shape[0], "the number of rows"),
        (lambda rows: rows / len(rows[rows[:, 0] > 0]), "the number of rows"),
        (lambda rows: torch.arange(rows[rows[:, 0] > 0].size(0)), "the number of rows"),
        (lambda rows: rows * 2 if rows[rows[:, 0] > 0].numel() else rows, "the number of rows"),
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


def routed(rows: Tensor, classes: int = 4) -> Tensor:
    """As the experts of DBRX: the last place of its mask has no weights, and no token."""
    weights = torch.arange(12.0).view(3, 4)
    chosen = rows[:, :3].argmax(dim=-1)
    mask = nn.functional.one_hot(chosen, num_classes=classes).permute(1, 0)
    result = torch.zeros_like(rows)
    for place in (mask.sum(-1) > 0).nonzero():
        expert = place[0]
        (tokens,) = torch.where(mask[expert])
        result.index_add_(0, tokens, rows[tokens] * weights[expert])
    return result


def test_a_loop_runs_over_places_of_which_no_row_is_picked() -> None:
    given = torch.randn(7, 4, generator=torch.Generator().manual_seed(3))
    program = exported(routed, takes_branches=True)
    torch.testing.assert_close(program(given), routed(given))


def test_a_loop_over_many_places_is_refused_with_their_number() -> None:
    with pytest.raises(UnsupportedOperatorError, match="a loop over the 65 places of a mask"):
        exported(lambda rows: routed(rows, 65), takes_branches=True)


def test_a_mask_that_rows_were_picked_by_may_not_change() -> None:
    def changed(rows: Tensor) -> Tensor:
        mask = rows[:, 0] > 0
        picked = rows[mask]
        mask &= rows[:, 1] > 0
        return rows + picked.sum(0)

    with pytest.raises(UnsupportedOperatorError, match="a change of the mask"):
        exported(changed)


def test_rows_of_a_mask_are_no_output() -> None:
    with pytest.raises(UnsupportedOperatorError, match="an output has as many rows as a mask"):
        exported(lambda rows: rows[rows[:, 0] > 0] * 2)
