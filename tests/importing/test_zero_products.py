"""A product with a constant zero is no number where PyTorch's is none."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from tapml.compiler.reference import compile_reference
from tapml.execute.executor import Executor
from tapml.importing.importer import import_module


class Products(nn.Module):
    """With zero as a number and as a tensor, on each side."""

    def forward(self, values: Tensor) -> tuple[Tensor, ...]:
        """Values ``[n]``."""
        zeros = torch.zeros_like(values)
        return (
            values * 0.0, 0 * values + 1, values * zeros, torch.zeros(2, 1) * values, 0.0 / values,
            zeros / values, values - values, values / values, values.half() * 0, values * 2,
            torch.zeros(6)[None] * values, torch.zeros(9)[3:].reshape(6, 1) * values[:, None],
            -torch.zeros(6).double().float() * values, torch.zeros(1).expand(6) / values,
            (values - values) == 0, 2 * values - 2 * values, values + 1 != values + 1,
        )  # fmt: skip


def test_it_is_pytorchs_of_every_kind_of_number() -> None:
    values = torch.tensor([1.5, -2, 0.0, math.inf, -math.inf, math.nan])
    imported = import_module(Products(), [values])
    entry = imported.plan.entries["main"]
    executor = Executor(imported.plan, imported.weights, compile_reference(imported.plan))
    found = executor.run("main", {entry.inputs[0]: values.numpy()})
    for name, wanted in zip(entry.outputs, Products()(values), strict=True):
        np.testing.assert_array_equal(found[name], wanted.numpy())
