"""A real, tiny Trainer under the callback."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tapml.invariants import InvariantViolated, InvariantWarning
from tapml.invariants.inference import infer, run_of
from tapml.invariants.invariant import InvariantSet
from tapml.invariants.trace import read_trace
from tapml_targets.errors import InputError

pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate")
from transformers import Trainer, TrainingArguments

from tapml.invariants.trainers.transformers import InvariantsCallback

BATCHES = 8


class Model(nn.Module):
    """Labels in, loss out, as a Trainer asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss."""
        logits = self.head(torch.relu(self.layer(x)))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Forgetful(Trainer):  # type: ignore[misc]
    """It freezes a layer in the middle of training, whose old gradient goes with that."""

    def training_step(self, model: nn.Module, *rest: Any, **named: Any) -> torch.Tensor:
        """Freeze, then train."""
        if self.state.global_step == 2:
            layer = model.get_submodule("layer")
            layer.requires_grad_(False)
            layer.zero_grad()
        found: torch.Tensor = super().training_step(model, *rest, **named)
        return found


def train(
    folder: Path, seed: int, *callbacks: InvariantsCallback, kind: type[Any] = Trainer
) -> list[float]:
    """Train with gradient accumulation; the losses."""
    torch.manual_seed(seed)
    data = [
        {"x": torch.randn(4), "labels": torch.randint(0, 2, ()).item()} for _ in range(2 * BATCHES)
    ]
    arguments = TrainingArguments(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        use_cpu=True,
        seed=seed,
    )
    trainer = kind(model=Model(), args=arguments, train_dataset=data, callbacks=list(callbacks))
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> InvariantSet:
    runs = []
    for seed in (1, 2):
        folder = tmp_path_factory.mktemp("trainer")
        train(folder, seed, InvariantsCallback(trace=folder / "trace"))
        runs.append(run_of(read_trace(folder / "trace")))
    return infer(runs)


def test_what_a_trainer_does_is_learned(learned: InvariantSet) -> None:
    relations = {each.relation for each in learned.invariants}
    assert {"OptimizerParameters", "APISequence", "PlannedSteps", "VarPeriodicChange"} <= relations
    assert all(f"{BATCHES} steps" in run for run in learned.runs)


def test_a_watched_trainer_gives_the_same_losses_and_breaks_nothing(
    learned: InvariantSet, tmp_path: Path
) -> None:
    plain = train(tmp_path, 3)
    callback = InvariantsCallback(learned, on_violation="stop")
    assert train(tmp_path, 3, callback) == plain
    report = callback.report()
    assert (report.violated, report.steps) == (0, BATCHES)
    assert report.held > len(learned.invariants) / 2


def test_stop_leaves_the_trainer_after_the_step_of_the_error(
    learned: InvariantSet, tmp_path: Path
) -> None:
    backward = torch.autograd.backward
    callback = InvariantsCallback(learned, on_violation="stop")
    with pytest.raises(InvariantViolated, match="step 2: "):
        train(tmp_path, 3, callback, kind=Forgetful)
    assert callback.report().steps == 3
    assert torch.autograd.backward is backward


def test_warn_lets_the_trainer_go_on(learned: InvariantSet, tmp_path: Path) -> None:
    callback = InvariantsCallback(learned)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        train(tmp_path, 3, callback, kind=Forgetful)
    assert any(each.category is InvariantWarning for each in told)
    assert callback.report().steps == BATCHES


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(InputError, match="either invariants"):
        InvariantsCallback()
    loud: Any = "shout"
    with pytest.raises(InputError, match="on_violation"):
        InvariantsCallback("pytorch", on_violation=loud)
