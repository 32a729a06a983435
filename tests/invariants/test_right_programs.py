"""Programs that are right though they look like errors, watched and recorded."""

from __future__ import annotations

import copy
import gc
import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from tapml.invariants import set_meta, watch
from tapml.invariants.checking import Checker, CheckReport, report_of
from tapml.invariants.inference import Run, infer
from tapml.invariants.recording import recorded


class Net(nn.Module):
    """Two layers."""

    def __init__(self, width: int, results: int) -> None:
        super().__init__()
        self.below, self.above = nn.Linear(width, 8), nn.Linear(8, results)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Results of rows."""
        found: torch.Tensor = self.above(torch.relu(self.below(rows)))
        return found


class Critic(Net):
    """Another class of model."""


class Recurrent(nn.Module):
    """Gives its state."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 4)

    def forward(
        self, rows: torch.Tensor, state: Sequence[torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Results and the two parts of the state."""
        found, (short, long) = self.cells(rows, state)
        return self.head(found), short, long


class Experts(nn.Module):
    """One of several layers is chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 1) for _ in range(4))

    def forward(self, rows: torch.Tensor, chosen: int) -> torch.Tensor:
        """Results of the chosen layer."""
        found: torch.Tensor = self.experts[chosen](rows) * self.router(rows).sum()
        return found


def descend(optimizer: torch.optim.Optimizer, *losses: torch.Tensor) -> None:
    """One step."""
    optimizer.zero_grad()
    for loss in losses:
        loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def plain(*, steps: int = 20, hurt: Sequence[int] = (), still: Sequence[int] = ()) -> None:
    """A regression; some steps have a rate of zero.

    After some, something halves the weights behind the optimizer's back.
    """
    model = Net(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.0 if step in still else 1e-2
        descend(optimizer, model(torch.randn(6, 8)).square().mean())
        if step in hurt:
            for each in model.parameters():
                each.data.mul_(0.5)


def normed(*, share: float = 1.0) -> None:
    """A bias gets a share of its gradients: rounding errors alone, as before a BatchNorm."""
    model = nn.Linear(8, 1)
    nn.init.ones_(model.bias)
    bias: Any = model.bias
    bias.register_hook(lambda gradient: gradient * share)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for _ in range(6):
        descend(optimizer, model(torch.randn(6, 8)).square().mean())


def decayed(kind: type[torch.optim.Optimizer], *, factor: float = 0.1) -> None:
    """The rate falls, by default to almost nothing."""
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 1))
    optimizer = kind(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, factor)
    for _ in range(10):
        descend(optimizer, model(torch.randn(6, 8)).square().mean())
        schedule.step()


def adversarial(*, steps: int = 20, clip: bool = False, hurt: bool = False) -> None:
    """A WGAN whose critic is clipped, or changed before the generator steps."""
    generator, critic = Net(4, 8), Critic(8, 1)
    ours = torch.optim.RMSprop(generator.parameters(), 5e-3)
    theirs = torch.optim.RMSprop(critic.parameters(), 5e-3)
    for _ in range(steps):
        made = critic(generator(torch.randn(6, 4)).detach()).mean()
        descend(theirs, made - critic(torch.randn(6, 8)).mean())
        for each in critic.parameters():
            if clip:
                each.data.clamp_(-0.1, 0.1)
            if hurt:
                each.data.add_(0.01)
        descend(ours, -critic(generator(torch.randn(6, 4))).mean())


def windows() -> None:
    """Windows of a series begin at odd places of its storage."""
    model, series = Net(32, 1), torch.randn(80)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for step in range(8):
        places = (step * 3, step * 3 + 1)
        descend(optimizer, *(model(series[at : at + 32]).square().mean() for at in places))


def orders() -> None:
    """Negatives are the rows of a batch in another order."""
    model = Net(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for _ in range(8):
        rows = torch.randn(6, 8)
        descend(optimizer, -(model(rows) - model(rows.roll(1, 0))).square().mean())


def target(*, steps: int) -> None:
    """The target network of a DQN follows every ten steps."""
    model, follower = Net(8, 2), Net(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for step in range(steps):
        rows = torch.randn(6, 8)
        with torch.no_grad():
            wanted = follower(rows)
        descend(optimizer, (model(rows) - wanted - 1).square().mean())
        if step % 10 == 9:
            follower.load_state_dict(model.state_dict())


def early(*, last_is_best: bool = False) -> None:
    """The best weights are loaded after training, if they are not the last."""
    model = Net(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for _ in range(6):
        descend(optimizer, model(torch.randn(6, 8)).square().mean())
    if not last_is_best:
        model.load_state_dict(model.state_dict())


def kept(*, losses: Sequence[float]) -> None:
    """The weights of the best evaluation are kept in memory, and saved in the end."""
    model, best = Net(8, 1), float("inf")
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for wanted in losses:
        descend(optimizer, model.train()(torch.randn(6, 8)).square().mean())
        with torch.no_grad():
            found = model.eval()(torch.randn(6, 8))
            loss = float(functional.mse_loss(found, found + wanted))
        if loss < best:
            best, weights = loss, copy.deepcopy(model.state_dict())
    torch.save(weights, io.BytesIO())


def sequences(*, lengths: Sequence[int] = (2, 2, 3, 2)) -> None:
    """Sequences of several chunks, some of one alone."""
    model = Recurrent()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for length in lengths:
        state = None
        for _ in range(length):
            found, *state = model(torch.randn(4, 5, 4), state)
            state = [each.detach() for each in state]
            descend(optimizer, found.square().mean())


def experts(*, chosen: Sequence[int] = (0, 1, 2)) -> None:
    """A mixture, one of whose experts may never be chosen."""
    model = Experts()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for step in range(8):
        rows = torch.randn(6, 8)
        descend(optimizer, model(rows, chosen[step % len(chosen)]).square().mean())


def folds(*, count: int = 3, resets: bool = False, remade: int = 0) -> None:
    """Cross-validation: each fold makes its model, or gives one its first values again.

    After some steps, something makes the optimizer again.
    """
    model: Any = None
    optimizer: torch.optim.Optimizer | None = None
    for _ in range(count):
        if model is None or not resets:
            # What is made here may lie where the one before lay.
            model = optimizer = None
            gc.collect()
            model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.1))
        else:
            model[0].reset_parameters()
            model[1].reset_parameters()
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for step in range(4):
            if remade and step == remade:
                optimizer = torch.optim.Adam(model.parameters(), 1e-2)
            descend(optimizer, model.train()(torch.randn(6, 8)).square().mean())
        with torch.no_grad():
            model.eval()(torch.randn(6, 8))


def refreshed(*, hurt: bool = False) -> None:
    """A critic is made anew with its optimizer, while the generator trains on."""
    generator = Net(4, 8)
    ours = torch.optim.SGD(generator.parameters(), 1e-2)
    critic: Any = None
    theirs: Any = None
    for step in range(9):
        if step % 3 == 0:
            critic = theirs = None
            gc.collect()
            critic = Critic(8, 1)
            theirs = torch.optim.SGD(critic.parameters(), 1e-2)
        descend(ours, -critic(generator(torch.randn(6, 4))).mean())
        descend(theirs, critic(generator(torch.randn(6, 4)).detach()).square().mean())
        if hurt and step == 5:
            generator.below.weight.data.mul_(0.5)


def epochs(*, lengths: Sequence[int] = (4, 4, 4, 4), planned: int | None = None) -> None:
    """Epochs of four batches; some are broken off."""
    model = Net(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    loader = DataLoader(TensorDataset(torch.randn(12, 8)), batch_size=3, shuffle=True)
    set_meta(planned_batches=planned)
    for length in lengths:
        for _, (rows,) in zip(range(length), loader, strict=False):
            descend(optimizer, model(rows).square().mean())


def run_of(train: Callable[[], None], seed: int) -> Run:
    """A recorded run."""
    torch.manual_seed(seed)
    with recorded() as recording:
        train()
    return recording.run()


def reports(
    right: Callable[[], None], other: Callable[[], None], *, watched_alone: bool = False
) -> list[CheckReport]:
    """Another run beside what two runs show, in a watch and from its trace."""
    learned = infer([run_of(right, seed) for seed in (1, 2)])
    torch.manual_seed(3)
    with watch(invariants=learned, on_violation="report") as watched:
        other()
    if watched_alone:
        return [watched.report()]
    checker, run = Checker(learned), run_of(other, 3)
    for window in run.windows:
        checker.check(window)
    return [watched.report(), report_of(checker, "another run", len(run.windows), (0,))]


@pytest.mark.parametrize(
    ("right", "other"),
    [
        (windows, windows),
        (orders, orders),
        (partial(adversarial, clip=True), partial(adversarial, clip=True)),
        (partial(target, steps=24), partial(target, steps=8)),
        (early, partial(early, last_is_best=True)),
        (partial(kept, losses=(3, 2, 1)), partial(kept, losses=(2, 1, 3))),
        (sequences, partial(sequences, lengths=(2, 1, 1, 2))),
        (experts, partial(experts, chosen=(0, 1, 2, 3))),
        (plain, partial(plain, still=[0, 9])),
        (normed, partial(normed, share=1e-12)),
        *(
            (partial(decayed, kind, factor=0.9), partial(decayed, kind))
            for kind in (torch.optim.SGD, torch.optim.Adam)
        ),
        (folds, folds),
        (folds, partial(folds, resets=True)),
        (partial(folds, count=1), folds),
        (partial(folds, count=1), partial(folds, resets=True)),
        (refreshed, refreshed),
        (epochs, partial(epochs, lengths=(4, 2, 4, 2))),
        (epochs, partial(epochs, lengths=(2, 2, 2), planned=2)),
    ],
    ids=[
        "series",
        "another-order",
        "clamped",
        "short-run",
        "early-stop",
        "best-weights",
        "one-chunk",
        "expert",
        "rate-of-zero",
        "bias-before-a-norm",
        "rate-that-falls",
        "rate-of-adam-that-falls",
        "folds",
        "folds-that-begin-again",
        "folds-after-one",
        "folds-that-begin-again-after-one",
        "critic-made-anew",
        "budget-of-steps",
        "budget-of-batches",
    ],
)
def test_a_right_program_violates_nothing(
    right: Callable[[], None], other: Callable[[], None]
) -> None:
    for report in reports(right, other):
        assert [each.invariant.text for cause in report.causes for each in cause.findings] == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (plain, partial(plain, hurt=[10])),
        (adversarial, partial(adversarial, hurt=True)),
    ],
    ids=["once", "before-one-of-two-optimizers"],
)
def test_a_watch_sees_what_goes_round_the_version_counter(
    right: Callable[[], None], wrong: Callable[[], None]
) -> None:
    (report,) = reports(right, wrong, watched_alone=True)
    found = [each.invariant for cause in report.causes for each in cause.findings]
    assert "BetweenSteps" in {each.relation for each in found}


def test_an_optimizer_that_is_made_again_is_found() -> None:
    for report in reports(partial(folds, count=1), partial(folds, remade=2)):
        found = [each for cause in report.causes for each in cause.findings]
        assert [(each.invariant.relation, each.first.step) for each in found] == [
            ("OptimizerKept", 2)
        ]


def test_a_change_beside_a_model_that_is_made_anew_is_found() -> None:
    for report in reports(refreshed, partial(refreshed, hurt=True)):
        found = [each for cause in report.causes for each in cause.findings]
        assert [(each.invariant.relation, each.first.step) for each in found] == [
            ("BetweenSteps", 6)
        ]


@pytest.mark.parametrize(("lengths", "step"), [((4, 1, 1, 4), 6), ((1, 1), 1)])
def test_two_epochs_that_are_broken_off_in_a_row_are_found(
    lengths: Sequence[int], step: int
) -> None:
    for report in reports(epochs, partial(epochs, lengths=lengths)):
        (found,) = [each for cause in report.causes for each in cause.findings]
        assert (found.invariant.relation, found.first.step) == ("EpochComplete", step)


def test_a_rate_that_stays_zero_is_found() -> None:
    for report in reports(plain, partial(plain, still=[8, 9, 10])):
        assert [each.first_step for each in report.causes] == [9]


def test_a_state_that_is_lost_for_good_is_found() -> None:
    for report in reports(sequences, partial(sequences, lengths=(1,) * 6)):
        found = [each for cause in report.causes for each in cause.findings]
        assert [(each.invariant.relation, each.first.step) for each in found] == [
            ("StateCarried", 4)
        ]


def test_a_target_that_never_follows_is_found_in_a_longer_run() -> None:
    def never() -> None:
        model, follower = Net(8, 2), Net(8, 2)
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        for _ in range(12):
            rows = torch.randn(6, 8)
            with torch.no_grad():
                wanted = follower(rows)
            descend(optimizer, (model(rows) - wanted - 1).square().mean())

    for report in reports(partial(target, steps=24), never):
        found = {each.invariant.relation for cause in report.causes for each in cause.findings}
        assert "UsedInEveryRun" in found
