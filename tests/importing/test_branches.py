"""Branches: ``torch.cond`` is both of its branches, one of Python is refused with its line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tapml.importing.exporting import EntryDescription, export_program
from tapml_targets.errors import InputError, UnsupportedOperatorError


class _Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Of ``[2, 4]``."""
        inner = rows[0, 1] > 0

        def otherwise(x: Tensor) -> Tensor:
            chosen: Tensor = torch.cond(inner, lambda y: y * 2, lambda y: y.sqrt(), (x,))
            return chosen

        first = torch.cond(rows[0, 0] > 0, lambda x: self.linear(x) + 1, otherwise, (rows,))
        return first, first * 2


@pytest.mark.parametrize("first", [(1.0, 1.0), (-1.0, 1.0), (-1.0, -1.0)])
def test_each_number_is_of_the_branch_that_is_taken(first: tuple[float, float]) -> None:
    given = torch.tensor([[*first, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]])
    module = _Branches()
    program = export_program(EntryDescription("forward", module, (torch.ones(2, 4),), ("rows",)))
    assert "cond" not in str(program.graph)
    torch.testing.assert_close(program.module()(given), module(given), equal_nan=True)


class _Of(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, rows: Tensor) -> Tensor:
        """Of ``[rows, 4]``."""
        return self.function(rows)


def test_a_condition_with_an_axis_gives_none_to_the_result() -> None:
    module = _Of(lambda rows: torch.cond(rows[0, :1] > 0, torch.sum, torch.mean, (rows,)))
    program = export_program(EntryDescription("forward", module, (torch.ones(2, 4),), ("rows",)))
    given = -torch.ones(2, 4)
    torch.testing.assert_close(program.module()(given), module(given))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (
            lambda rows: torch.cond(
                rows[0, 0] > 0, lambda x: x[:2].clone(), lambda x: x[:1].clone(), (rows,)
            ).sum(),
            "results of two shapes",
        ),
        (lambda rows: torch.cond(rows.shape[0] > 4, torch.sin, torch.cos, (rows,)), "of an extent"),
    ],
)
def test_branches_that_no_number_chooses_between_are_refused(
    function: Callable[[Tensor], Tensor], reason: str
) -> None:
    rows = torch.export.Dim("rows", min=2, max=99)
    with pytest.raises(UnsupportedOperatorError, match=f"torch.cond moves as both .* {reason}"):
        export_program(
            EntryDescription(
                "forward",
                _Of(function),
                (torch.ones(3, 4),),
                ("rows",),
                dynamic_shapes=({0: rows},),
            )
        )


class _Asks(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        """Of ``[2, 4]``."""
        if rows.sum() > 0:
            return rows + 1
        return rows


def test_a_branch_of_python_is_refused_with_its_line() -> None:
    with pytest.raises(InputError, match=r"importing/test_branches\.py:\d+: .* take torch.where"):
        export_program(EntryDescription("forward", _Asks(), (torch.ones(2, 4),), ("rows",)))
