"""Extents that are equal are written alike, so that what has them can be fused."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from tapml.compiler.reference import compile_reference
from tapml.execute.executor import Executor
from tapml.importing.exporting import EntryDescription
from tapml.importing.importer import import_entries


class _Experts(nn.Module):
    """Two of three experts for each row, whose places are ``2 * rows``, as in DBRX."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(3, 4, generator=torch.Generator().manual_seed(2)))

    def forward(self, rows: Tensor) -> Tensor:
        shares, chosen = torch.topk(rows[:, :3].softmax(-1), 2, dim=-1)
        mask = nn.functional.one_hot(chosen, num_classes=4).permute(2, 1, 0)
        result = torch.zeros_like(rows)
        for place in (mask.sum((-1, -2)) > 0).nonzero():
            expert = place[0]
            order, tokens = torch.where(mask[expert])
            states = rows[tokens] * self.weights[expert]
            result.index_add_(0, tokens, states.view(-1, 4) * shares[tokens, order, None])
        return result


def test_rows_of_two_places_each_are_fused_for_every_length() -> None:
    module = _Experts().eval()
    rows = torch.export.Dim("rows", min=2, max=99)
    entry = EntryDescription(
        "main", module, (torch.randn(3, 4),), ("rows",),
        dynamic_shapes=({0: rows},), takes_branches=True,
    )  # fmt: skip
    made = import_entries("main", [entry])
    executor = Executor(made.plan, made.weights, compile_reference(made.plan))
    for count in (2, 7):
        given = torch.randn(count, 4, generator=torch.Generator().manual_seed(count))
        (found,) = executor.run("main", {"rows": given.numpy()}).values()
        with torch.no_grad():
            assert np.allclose(found, module(given).numpy(), rtol=1e-5, atol=1e-6)


class _Bias(nn.Module):
    """The last rows of a bias, at most as many as tokens: one, as in MPT with one head."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.arange(4.0)[None])

    def forward(self, rows: Tensor) -> Tensor:
        first = max(0, self.bias.shape[0] - rows.shape[0])
        return rows + self.bias[first:]


def test_rows_that_are_all_for_every_length_are_taken_as_they_are() -> None:
    rows = torch.export.Dim("rows", min=2, max=99)
    entry = EntryDescription(
        "main", _Bias().eval(), (torch.randn(3, 4),), ("rows",), dynamic_shapes=({0: rows},)
    )
    made = import_entries("main", [entry])
    executor = Executor(made.plan, made.weights, compile_reference(made.plan))
    (found,) = executor.run("main", {"rows": np.ones((5, 4), np.float32)}).values()
    assert (found == np.arange(1, 5)).all()
