"""``ctc_loss`` is PyTorch's for every form of its targets."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tapml.importing.alignments import ctc_loss
from tapml.importing.exporting import EntryDescription, export_entry
from tapml.importing.importer import import_module
from tapml_targets.errors import UnsupportedOperatorError
from tests.importing.modules import root_module

# Its annotation knows no tuples.
_own: Any = functional.ctc_loss
REPEATED = torch.tensor([[1, 1, 1, 1], [2, 2, 3, 3], [1, 2, 1, 2]])


def _log_probabilities() -> Tensor:
    return torch.randn(9, 3, 5, generator=torch.Generator().manual_seed(3)).log_softmax(-1)


@pytest.mark.parametrize("lengths", [(4, 2, 0), (3, 4, 1)])
def test_repeated_labels_and_rows_of_any_length_are_pytorchs(lengths: tuple[int, ...]) -> None:
    given, steps = _log_probabilities(), (9, 8, 7)
    reductions = enumerate(("none", "mean", "sum"))
    for (kind, name), zeroed in product(reductions, (False, True)):
        wanted = _own(given, REPEATED, steps, lengths, 0, name, zeroed)
        found = ctc_loss(given, REPEATED, steps, lengths, 0, kind, zeroed)
        torch.testing.assert_close(found, wanted)


def test_targets_one_after_the_other_and_of_one_row_are_pytorchs() -> None:
    given, steps, lengths = _log_probabilities(), (9, 8, 7), (3, 4, 1)
    flat = torch.cat([row[:count] for row, count in zip(REPEATED, lengths, strict=True)])
    wanted = _own(given, flat, steps, lengths)
    torch.testing.assert_close(ctc_loss(given, flat, steps, lengths), wanted)
    single = given[:, 0], REPEATED[0], (9,), (4,)
    torch.testing.assert_close(ctc_loss(*single), _own(*single))


@pytest.mark.parametrize("zeroed", [False, True])
def test_padding_is_any_number_and_a_row_may_have_no_step(zeroed: bool) -> None:
    given, lengths = _log_probabilities(), ((9, 0, 0), (2, 0, 1))
    labels = torch.tensor([[1, 2, -1], [-100, 7, 3], [1, -1, -1]])
    wanted = _own(given, labels, *lengths, 0, "none", zeroed)
    assert bool(wanted.isinf().any()) is not zeroed
    torch.testing.assert_close(ctc_loss(given, labels, *lengths, 0, 0, zeroed), wanted)


def test_many_steps_are_refused() -> None:
    with pytest.raises(UnsupportedOperatorError, match="up to 256, this one has 300"):
        ctc_loss(torch.zeros(300, 1, 2), torch.ones(1, 1, dtype=torch.int64), [300], [1])


class Loss(torch.nn.Module):
    """Of lengths that are tensors."""

    def forward(self, rows: Tensor, labels: Tensor, steps: Tensor, counts: Tensor) -> Tensor:
        """Rows ``[T, N, C]``, labels ``[N, S]``."""
        return functional.ctc_loss(rows.log_softmax(-1), labels, steps, counts)


def test_a_plan_has_a_loss() -> None:
    torch.manual_seed(3)
    counts = torch.tensor([9, 8]), torch.tensor([4, 3])
    given = torch.randn(9, 2, 5), torch.randint(1, 5, (2, 4)), *counts
    entry = EntryDescription("main", Loss(), given, ("rows", "labels", "steps", "counts"))
    # What is compared with the module itself when it is rooted.
    assert export_entry(entry).written_out
    imported = import_module(Loss(), given)
    report = root_module(imported, [each.numpy() for each in given])
    assert all(each.ratio <= 1 for each in report.compared)
