"""Runs Lightning's Trainer under the callback and prints what came of it as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    import lightning.pytorch as pl
except ModuleNotFoundError:
    import pytorch_lightning as pl

from tapml.invariants import InvariantViolated
from tapml.invariants.inference import infer, run_of
from tapml.invariants.trace import read_trace
from tapml.invariants.trainers.lightning import InvariantsCallback


class Model(pl.LightningModule):  # type: ignore[misc]
    """A small classifier; its optimizer forgets a layer if `frozen_at` is a step of the run."""

    def __init__(self, frozen_at: int = -1) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 8), nn.Linear(8, 2)
        self.frozen_at = frozen_at
        self.losses: list[float] = []

    def training_step(self, batch: Any, place: int) -> torch.Tensor:
        """The loss."""
        if self.global_step == self.frozen_at:
            self.layer.requires_grad_(False)
            self.layer.zero_grad()
        x, y = batch
        loss = nn.functional.cross_entropy(self.head(torch.relu(self.layer(x))), y)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def train(
    seed: int, *callbacks: Any, frozen_at: int = -1, batches: int | None = None
) -> list[float]:
    """Train; the losses."""
    torch.manual_seed(seed)
    data = TensorDataset(torch.randn(16, 4), torch.randint(0, 2, (16,)))
    model = Model(frozen_at)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=2,
        limit_train_batches=batches,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
    )
    trainer.fit(model, DataLoader(data, batch_size=4))
    return model.losses


def main(folder: Path) -> dict[str, Any]:
    """All runs."""
    runs = []
    for seed in (1, 2):
        trace = folder / f"trace-{seed}"
        train(seed, InvariantsCallback(trace=trace))
        runs.append(run_of(read_trace(trace)))
    learned = infer(runs)
    watching = InvariantsCallback(learned)
    plain, watched = train(3), train(3, watching)
    clean = watching.report()
    limited = InvariantsCallback(learned)
    train(3, limited, batches=2)
    backward, stopped = torch.autograd.backward, ""
    try:
        train(3, InvariantsCallback(learned, on_violation="stop"), frozen_at=2)
    except InvariantViolated as error:
        stopped = str(error)
    return {
        "relations": sorted({each.relation for each in learned.invariants}),
        "plain": plain,
        "watched": watched,
        "clean": {"violated": clean.violated, "steps": clean.steps},
        "limited": limited.report().violated,
        "stopped": stopped,
        "hooks left": torch.autograd.backward is not backward,
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
