"""Sixty clean training programs of four classes, from the table clean_programs.csv.

A line of the table names a class, a model, a loop, an optimizer, a scheduler, a precision, where
batches come from, what follows training, and whether the steps are planned. Models and data are
small and random; a seed makes both.
"""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from tapml.invariants import set_meta

TABLE: Final = Path(__file__).with_suffix(".csv")
STEPS: Final = 6
ROWS: Final = 6
OPTIMIZERS: Final[dict[str, Callable[..., torch.optim.Optimizer]]] = {
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "SGD": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
    "RMSprop": torch.optim.RMSprop,
    "NAdam": torch.optim.NAdam,
}
SCHEDULERS: Final[dict[str, Callable[[torch.optim.Optimizer], Any]]] = {
    "none": lambda _: None,
    "step": lambda steps: torch.optim.lr_scheduler.StepLR(steps, 2),
    "cosine": lambda steps: torch.optim.lr_scheduler.CosineAnnealingLR(steps, STEPS),
    "cycle": lambda steps: torch.optim.lr_scheduler.OneCycleLR(steps, 1e-3, total_steps=99),
}
Batch = tuple[torch.Tensor, ...]


class Residual(nn.Module):
    """A convolution beside its input."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(1, 4, 3, padding=1)
        self.inner, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        hidden = functional.relu(self.enter(x))
        hidden = hidden + self.norm(self.inner(hidden))
        found: torch.Tensor = self.head(hidden.mean((2, 3)))
        return found


class Patches(nn.Module):
    """A transformer over the patches of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, 8, 4, stride=4)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        found: torch.Tensor = self.head(self.layer(self.patch(x).flatten(2).mT).mean(1))
        return found


class Language(nn.Module):
    """Logits of the next tokens by a transformer or a recurrent layer."""

    def __init__(self, layer: nn.Module, *, tied: bool = False) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(24, 16), layer
        self.head = nn.Linear(16, 24, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits, classes second."""
        hidden = self.layer(self.embedding(tokens))
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        found: torch.Tensor = self.head(hidden)
        return found.mT


class Graph(nn.Module):
    """Two layers that pass messages along a dense matrix of edges."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        width = 2 if kind == "sage" else 1
        self.first, self.second = nn.Linear(6 * width, 8), nn.Linear(8 * width, 4)
        self.score = nn.Linear(6, 6) if kind == "attention" else None

    def forward(self, nodes: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of classes."""
        edges = torch.softmax(nodes @ nodes.mT, -1)
        if self.score is not None:
            edges = torch.softmax(self.score(nodes) @ nodes.mT, -1)
        hidden = functional.dropout(
            torch.relu(self.first(self._sent(edges, nodes))), 0.5, self.training
        )
        return functional.log_softmax(self.second(self._sent(edges, hidden)), -1).mT

    def _sent(self, edges: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        sent = edges @ nodes
        return torch.cat([nodes, sent], -1) if self.kind == "sage" else sent


class Variational(nn.Module):
    """An autoencoder with a random code."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(12, 8), nn.Linear(4, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What is decoded."""
        mean, spread = self.encode(x).chunk(2, -1)
        found: torch.Tensor = self.decode(mean + torch.randn_like(mean) * torch.exp(spread / 2))
        return found


class Denoiser(nn.Module):
    """Predicts the noise of a diffusion step."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.layers = (
            nn.Linear(1, 12),
            nn.Sequential(nn.Linear(12, 16), nn.SiLU(), nn.LayerNorm(16), nn.Linear(16, 12)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The noise."""
        time = torch.rand(len(x), 1, dtype=x.dtype)
        found: torch.Tensor = self.layers(x + self.time(time))
        return found


def _transformer() -> nn.Module:
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)


MODELS: Final[dict[str, Callable[[], nn.Module]]] = {
    "convolution": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)
    ),
    "residual": Residual,
    "perceptron": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.GELU(), nn.Dropout(), nn.Linear(16, 4)
    ),
    "patches": Patches,
    "transformer": lambda: Language(_transformer()),
    "tied": lambda: Language(_transformer(), tied=True),
    "lstm": lambda: Language(nn.LSTM(16, 16, batch_first=True)),
    "gru": lambda: Language(nn.GRU(16, 16, batch_first=True)),
    "gcn": lambda: Graph("gcn"),
    "sage": lambda: Graph("sage"),
    "attention": lambda: Graph("attention"),
    "autoencoder": lambda: nn.Sequential(nn.Linear(12, 4), nn.Tanh(), nn.Linear(4, 12)),
    "variational": Variational,
    "denoiser": Denoiser,
    "adversarial": lambda: nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 12)),
}


def _images(count: int) -> Batch:
    return torch.randn(count, 1, 8, 8), torch.randint(0, 4, (count,))


def _tokens(count: int) -> Batch:
    tokens = torch.randint(0, 24, (count, 9))
    return tokens[:, :-1], tokens[:, 1:]


def _nodes(count: int) -> Batch:
    return torch.randn(count, 10, 6), torch.randint(0, 4, (count, 10))


def _vectors(count: int) -> Batch:
    x = torch.randn(count, 12)
    return x, x


DATA: Final = {"images": _images, "language": _tokens, "graphs": _nodes, "generative": _vectors}
LOSSES: Final[dict[str, Callable[..., torch.Tensor]]] = {
    "images": functional.cross_entropy,
    "language": functional.cross_entropy,
    "graphs": functional.nll_loss,
    "generative": functional.mse_loss,
}


@dataclass(frozen=True)
class Program:
    """A line of the table."""

    kind: str
    model: str
    loop: str
    optimizer: str
    scheduler: str
    precision: str
    data: str
    end: str
    planned: str

    @property
    def name(self) -> str:
        """All of it."""
        return "-".join(vars(self).values()).replace(" ", "-")

    @property
    def pipeline(self) -> tuple[str, ...]:
        """What is code rather than configuration."""
        return self.model, self.loop, self.data, self.end, self.planned

    def run(self, seed: int, optimizer: str = "") -> None:
        """Train, with another optimizer if one is named."""
        torch.manual_seed(seed)
        model = MODELS[self.model]()
        if self.precision == "float64":
            model = model.double()
        steps = OPTIMIZERS[optimizer or self.optimizer](model.parameters(), lr=1e-3)
        loop = _adversarial if self.model == "adversarial" else LOOPS[self.loop]
        if self.planned == "yes":
            # As trainers do, which know it from their arguments.
            set_meta(planned_steps=STEPS)
        loop(self, model, steps, SCHEDULERS[self.scheduler](steps))
        if "evaluates" in self.end:
            _evaluate(self, model)
        if "saves" in self.end:
            torch.save({"model": model.state_dict()}, io.BytesIO())

    def batches(self, count: int = STEPS) -> Iterator[Batch]:
        """Batches of a loader, or slices of the data."""
        data = DATA[self.kind](count * ROWS)
        if self.precision == "float64":
            data = tuple(each.double() if each.is_floating_point() else each for each in data)
        if self.data == "loader":
            yield from DataLoader(TensorDataset(*data), batch_size=ROWS, shuffle=True)
        else:
            yield from zip(*(each.split(ROWS) for each in data), strict=True)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """The loss of a batch, cast or not."""
        cast = (
            torch.autocast("cpu", dtype=torch.bfloat16)
            if self.precision == "bfloat16"
            else contextlib.nullcontext()
        )
        with cast:
            found = model(batch[0])
        return LOSSES[self.kind](found if self.precision == "float64" else found.float(), batch[1])


def _plain(program: Program, model: nn.Module, steps: torch.optim.Optimizer, schedule: Any) -> None:
    for batch in program.batches():
        steps.zero_grad()
        program.loss(model, batch).backward()
        steps.step()
        if schedule is not None:
            schedule.step()


def _clipped(
    program: Program, model: nn.Module, steps: torch.optim.Optimizer, schedule: Any
) -> None:
    for batch in program.batches():
        loss = program.loss(model, batch)
        steps.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        steps.step()
        if schedule is not None:
            schedule.step()


def _accumulated(
    program: Program, model: nn.Module, steps: torch.optim.Optimizer, schedule: Any
) -> None:
    for number, batch in enumerate(program.batches(2 * STEPS)):
        (program.loss(model, batch) / 2).backward()
        if number % 2:
            steps.step()
            if schedule is not None:
                schedule.step()
            steps.zero_grad()


def _evaluated(
    program: Program, model: nn.Module, steps: torch.optim.Optimizer, schedule: Any
) -> None:
    for _ in range(2):
        model.train()
        for batch in program.batches(STEPS // 2):
            steps.zero_grad()
            program.loss(model, batch).backward()
            steps.step()
        if schedule is not None:
            schedule.step()
        _evaluate(program, model)


def _evaluate(program: Program, model: nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        for batch in program.batches(2):
            program.loss(model, batch)


def _saved(program: Program, model: nn.Module, steps: torch.optim.Optimizer, schedule: Any) -> None:
    _plain(program, model, steps, schedule)
    torch.save({"model": model.state_dict(), "optimizer": steps.state_dict()}, io.BytesIO())


def _adversarial(
    program: Program, model: nn.Module, steps: torch.optim.Optimizer, schedule: Any
) -> None:
    judge = nn.Sequential(nn.Linear(12, 16), nn.LeakyReLU(), nn.Linear(16, 1))
    if program.precision == "float64":
        judge = judge.double()
    judges = type(steps)(judge.parameters(), lr=1e-3)  # type: ignore[call-arg]
    loss = nn.BCEWithLogitsLoss()
    for real, _ in program.batches():
        fake = model(torch.randn_like(real))
        judges.zero_grad()
        ones, zeros = torch.ones_like(real[:, :1]), torch.zeros_like(real[:, :1])
        (loss(judge(real), ones) + loss(judge(fake.detach()), zeros)).backward()
        judges.step()
        steps.zero_grad()
        loss(judge(fake), ones).backward()
        steps.step()
        if schedule is not None:
            schedule.step()


LOOPS: Final = {
    "plain": _plain,
    "clipped": _clipped,
    "accumulated": _accumulated,
    "evaluated": _evaluated,
    "saved": _saved,
}

with TABLE.open(encoding="utf-8", newline="") as _file:
    PROGRAMS: Final = [Program(*line) for line in list(csv.reader(_file))[1:]]
