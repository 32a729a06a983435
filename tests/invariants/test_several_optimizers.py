"""Programs with several optimizers, of which one is left out of a call that the others get."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from tapml.invariants import watch
from tapml.invariants.checking import Checker
from tapml.invariants.inference import Run, infer
from tapml.invariants.recording import recorded


class Tower(nn.Module):
    """Embeddings and what follows them, which have an optimizer each."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.head = nn.Embedding(16, 8), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        """A number for each place."""
        found: torch.Tensor = self.head(self.rows(places)).squeeze(-1)
        return found


def split(*, error: str = "") -> None:
    """One model, two optimizers with a schedule each."""
    model = Tower()
    optimizers = [torch.optim.Adagrad(each.parameters(), 0.1) for each in (model.rows, model.head)]
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in optimizers]
    for _ in range(6):
        for each in optimizers[: 1 if error == "not cleared" else 2]:
            each.zero_grad()
        loss = functional.mse_loss(model(torch.randint(0, 16, (6,))), torch.randn(6))
        loss.backward()  # type: ignore[no-untyped-call]
        for each in optimizers:
            each.step()
        for schedule in schedules[: 1 if error == "not moved" else 2]:
            schedule.step()


def adversarial(*, error: str = "") -> None:
    """A generator and a critic, whose gradients the modules clear."""
    generator, critic = Tower(), nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    theirs = torch.optim.Adam(critic.parameters(), 1e-3)
    ours = torch.optim.Adam(generator.parameters(), 1e-3)
    for step in range(6):
        made = generator(torch.randint(0, 16, (6,)))
        critic.zero_grad()
        fake = critic(made if error == "not detached" else made.detach())
        (fake - critic(torch.randn(6))).backward(retain_graph=True)
        theirs.step()
        generator.zero_grad()
        (-critic(made)).backward()
        ours.step()
        if step % 2 and error != "not evaluated":
            with torch.no_grad():
                generator.eval()(torch.arange(6))
            generator.train()


def run_of(train: Callable[[], None], seed: int) -> Run:
    """A recorded run."""
    torch.manual_seed(seed)
    with recorded() as recording:
        train()
    return recording.run()


@pytest.mark.parametrize(
    ("train", "error", "relation", "said"),
    [
        (split, "", "", ""),
        (split, "not cleared", "GradientsCleared", "of optimizer 1 were not cleared"),
        (split, "not moved", "ScheduledOptimizer", "no schedule moves optimizer 1"),
        (adversarial, "", "", ""),
        (adversarial, "not detached", "GradientsUsed", "optimizer 1 cleared gradients"),
        (adversarial, "not evaluated", "Evaluated", "Tower never ran in evaluation mode"),
    ],
)
def test_the_optimizer_or_model_that_is_left_out_is_named(
    train: Callable[..., None], error: str, relation: str, said: str
) -> None:
    learned = infer([run_of(train, seed) for seed in (1, 2)])
    wrong = partial(train, error=error)
    checker = Checker(learned)
    for window in run_of(wrong, 3).windows:
        checker.check(window)
    torch.manual_seed(3)
    with watch(invariants=learned, on_violation="report") as watched:
        wrong()
    for each in (checker, watched.checker):
        found = {one.invariant.relation: one.first.found for one in each.findings.values()}
        assert set(found) == ({relation} if error else set())
        assert said in found.get(relation, "")
