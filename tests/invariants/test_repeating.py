"""Steps that repeat the one before give what they would give if each were looked at in full."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tapml.invariants import set_meta, watch
from tapml.invariants.inference import infer
from tapml.invariants.invariant import InvariantSet
from tapml.invariants.recording import recorded
from tapml.invariants.repeating import Repeating

# What goes wrong from its second epoch on, and then stays wrong or is mended.
ERRORS = (
    "nothing",
    "fewer steps than planned",
    "no zero_grad",
    "frozen",
    "same batch",
    "wider rows",
    "mended",
)


class Loader(DataLoader[torch.Tensor]):
    """Batches of 4 rows."""

    def __init__(self, rows: torch.Tensor) -> None:
        super().__init__(rows, batch_size=4)  # type: ignore[arg-type]


def train(error: str = "nothing") -> None:
    """Two epochs of 6 steps."""
    torch.manual_seed(0)
    set_meta(planned_steps=13 if error == "fewer steps than planned" else 12)
    rows = torch.randn(24, 4)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(2):
        wrong = epoch == 1
        if wrong and error == "same batch":
            rows = rows[:4].repeat(6, 1)
        for place, batch in enumerate(Loader(rows)):
            late = wrong and place > 3
            if not (wrong and error == "no zero_grad") and not (late and error == "mended"):
                optimizer.zero_grad()
            if late and error == "frozen":
                model[0].requires_grad_(False)
            given = batch.repeat(2, 1) if late and error == "wider rows" else batch
            model(given).square().mean().backward()
            optimizer.step()


@pytest.fixture(scope="module")
def learned() -> InvariantSet:
    with recorded() as recording:
        train()
    return infer([recording.run()])


def watched(learned: InvariantSet, error: str) -> tuple[dict[str, Any], dict[str, int], int]:
    """The report, how often each rule applied, and how many steps repeated the one before."""
    with watch(invariants=learned, on_violation="report") as run:
        train(error)
    return run.report().to_json(), dict(run.checker.applied), run._repeating.times


@pytest.mark.parametrize("error", ERRORS)
def test_a_repeated_step_counts_as_one_that_was_looked_at(
    learned: InvariantSet, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, applied, _ = watched(learned, error)
    monkeypatch.setattr(Repeating, "takes", lambda *_: False)
    whole, counted, times = watched(learned, error)
    assert times == 0
    assert report == whole
    assert applied == counted
    assert bool(report["violated"]) == (error not in ("nothing", "wider rows"))


def test_equal_steps_are_told(learned: InvariantSet) -> None:
    *_, times = watched(learned, "nothing")
    assert times > 2
