"""An index below zero counts from the end, as in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
import torch
from torch import nn

from tapml.compiler.reference import compile_reference
from tapml.importing.importer import import_module
from tapml.plan.graph_plan import GraphPlan
from tapml.rooting.interpreter import run_entry

Function = Callable[..., torch.Tensor]
X: Final = torch.arange(60.0).reshape(5, 4, 3)
ROWS: Final = torch.tensor([-1, 0, 2, -3])
COLUMNS: Final = torch.tensor([-1, -2, 0, 1])
CASES: Final[dict[str, tuple[Function, tuple[torch.Tensor, ...]]]] = {
    "the last row": (lambda x: x[:, -1], (X,)),
    "rows by a tensor": (lambda x, i: x[i], (X, ROWS)),
    "rows by a tensor of 32 bits": (lambda x, i: x[i], (X, ROWS.int())),
    "both": (lambda x, i: x[:, i, -2], (X, ROWS)),
    "pairs": (lambda x, i, j: x[i, j], (X, ROWS, COLUMNS)),
    "one element": (lambda x: x[-5, -1, -3], (X,)),
    "a mask is no index": (
        lambda x, i: torch.where(i[:, None, None] < 0, x[:4], -x[1:]),
        (X, ROWS),
    ),
}


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        return self.function(*given)


class Last(nn.Module):
    """The last of a number of rows that only the run knows, and rows by a tensor."""

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[:, -1] + x[:, i].sum(1)


def computed(plan: GraphPlan, *given: torch.Tensor) -> np.ndarray[Any, Any]:
    """The plan's output on the reference."""
    entry = plan.entries["main"]
    arrays = dict(zip(entry.inputs, (each.numpy() for each in given), strict=True))
    return run_entry(entry, compile_reference(plan), arrays)[entry.outputs[0]]


@pytest.mark.parametrize("name", CASES)
def test_it_counts_from_the_end(name: str) -> None:
    function, given = CASES[name]
    plan = import_module(Apply(function), given).plan
    np.testing.assert_array_equal(computed(plan, *given), function(*given).numpy())


def test_the_end_of_a_dynamic_extent_is_that_of_the_run() -> None:
    rows = torch.export.Dim("rows", min=4, max=64)
    module, given = Last(), (X.transpose(0, 1).contiguous(), ROWS)
    plan = import_module(module, given, dynamic=({1: rows}, None)).plan
    for length in (4, 7, 64):
        x = torch.arange(4.0 * length * 3).reshape(4, length, 3)
        np.testing.assert_array_equal(computed(plan, x, ROWS), module(x, ROWS).numpy())


def test_slices_of_a_dynamic_extent_are_those_of_the_run_and_clamp_nothing() -> None:
    class Slices(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Buffer(torch.arange(70.0)[:, None])

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = torch.cat([x[:1] * 2, x])
            table = self.table[: x.shape[0]], self.table[2 : x.shape[0] + 2]
            return y[:-1] + y[1:], y[-3:] - y[1:4], y[2:-1], x + table[0] * table[1]

    rows = torch.export.Dim("rows", min=4, max=64)
    imported = import_module(Slices(), (X[:, 0],), dynamic=({0: rows},))
    entry, reference = imported.plan.entries["main"], compile_reference(imported.plan)
    for length in (4, 7, 64):
        x = torch.arange(length * 3.0).reshape(length, 3)
        found = run_entry(entry, reference, {entry.inputs[0]: x.numpy(), **imported.weights})
        for name, expected in zip(entry.outputs, Slices()(x), strict=True):
            np.testing.assert_array_equal(found[name], expected.numpy())
    texts = [each.function for each in imported.plan.operators.values()]
    assert not any("T.max" in each or "T.min" in each for each in texts)
