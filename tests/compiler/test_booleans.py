"""Comparisons are kept apart where tensors hold them, and nowhere else."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from tvm_ffi.serialization import from_json_graph_str

from tapml.importing.importer import import_module
from tapml_targets.codegen.booleans import with_logical_operators


class Places(nn.Module):
    """Of the largest and the smallest, which keep NaN."""

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rows ``[5, 300]``."""
        return rows.argmax(1), rows.argmin(1)


class Between(nn.Module):
    """A mask of two comparisons."""

    def forward(self, rows: Tensor) -> Tensor:
        """Rows ``[5, 300]``."""
        return (rows < 1) | (rows > 2)


def changed(module: nn.Module) -> list[bool]:
    """Of each operator, whether its function becomes another."""
    operators = import_module(module, [torch.rand(5, 300)]).plan.operators.values()
    functions = [from_json_graph_str(each.function) for each in operators]
    return [not with_logical_operators(each).same_as(each) for each in functions]


def test_a_reducer_stays_as_it_is_so_that_schedules_know_it() -> None:
    assert changed(Places()) == [False, False]


def test_comparisons_that_tensors_hold_are_kept_apart() -> None:
    assert changed(Between()) == [True]
