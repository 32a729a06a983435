"""Clean training programs in four classes: what the curated set is learned from, and false alarms.

Each trains for a few steps with random data: ``run(seed, optimizer)``. The classes are those of
figure 7 of the TrainCheck paper in small: images, language, graphs and others.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

STEPS: Final = 6
OPTIMIZERS: Final[dict[str, Callable[..., torch.optim.Optimizer]]] = {
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "SGD": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
    "RMSprop": torch.optim.RMSprop,
}


@dataclass(frozen=True)
class Program:
    """A clean program: its class, and a function that trains."""

    name: str
    kind: str
    run: Callable[[int, str], None]


PROGRAMS: Final[list[Program]] = []


def program(kind: str) -> Callable[[Callable[[int, str], None]], Callable[[int, str], None]]:
    """Register a function as a program."""

    def register(run: Callable[[int, str], None]) -> Callable[[int, str], None]:
        PROGRAMS.append(Program(run.__name__, kind, run))
        return run

    return register


def made(name: str, model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer of the model's trainable parameters."""
    return OPTIMIZERS[name]([p for p in model.parameters() if p.requires_grad], lr=1e-3)


def images(count: int = STEPS, rows: int = 8) -> DataLoader[tuple[torch.Tensor, ...]]:
    """A loader of small images with labels."""
    data = TensorDataset(torch.randn(count * rows, 1, 8, 8), torch.randint(0, 4, (count * rows,)))
    return DataLoader(data, batch_size=rows, shuffle=True)


@program("images")
def convolution(seed: int, optimizer: str) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)
    )
    steps, loss = made(optimizer, model), nn.CrossEntropyLoss()
    for x, y in images():
        steps.zero_grad()
        loss(model(x), y).backward()
        steps.step()


@program("images")
def evaluated(seed: int, optimizer: str) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 4)
    )
    steps = made(optimizer, model)
    schedule = torch.optim.lr_scheduler.StepLR(steps, 2)
    for _ in range(2):
        model.train()
        for x, y in images(3):
            steps.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            steps.step()
        schedule.step()
        model.eval()
        with torch.no_grad():
            for x, _ in images(2):
                model(x).argmax(1)
    torch.save({"model": model.state_dict(), "optimizer": steps.state_dict()}, io.BytesIO())


@program("images")
def accumulated(seed: int, optimizer: str) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(144, 4))
    steps = made(optimizer, model)
    steps.zero_grad()
    for number, (x, y) in enumerate(images(2 * STEPS)):
        (functional.cross_entropy(model(x), y) / 2).backward()
        if number % 2:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            steps.step()
            steps.zero_grad()


@program("images")
def tuned(seed: int, optimizer: str) -> None:
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten())
    body.requires_grad_(False)
    model = nn.Sequential(body, nn.Linear(144, 4))
    steps = made(optimizer, model)
    for x, y in images():
        steps.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        steps.step()


class Language(nn.Module):
    """A transformer of one layer; `tied` shares the embedding with the head."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 32, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next tokens."""
        found: torch.Tensor = self.head(self.layer(self.embedding(tokens)))
        return found


def tokens(count: int = STEPS) -> Iterator[torch.Tensor]:
    """Random token ids."""
    for _ in range(count):
        yield torch.randint(0, 32, (4, 12))


def _language(seed: int, optimizer: str, *, tied: bool, cast: bool = False) -> None:
    torch.manual_seed(seed)
    model = Language(tied)
    steps = made(optimizer, model)
    schedule = torch.optim.lr_scheduler.OneCycleLR(steps, 1e-3, total_steps=STEPS + 1)
    for batch in tokens():
        steps.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast):
            loss = functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        steps.step()
        schedule.step()


@program("language")
def transformer(seed: int, optimizer: str) -> None:
    _language(seed, optimizer, tied=False)


@program("language")
def tied_transformer(seed: int, optimizer: str) -> None:
    _language(seed, optimizer, tied=True)


@program("language")
def mixed_precision(seed: int, optimizer: str) -> None:
    _language(seed, optimizer, tied=False, cast=True)


@program("language")
def recurrent(seed: int, optimizer: str) -> None:
    torch.manual_seed(seed)
    layers = nn.ModuleDict(
        {"in": nn.Embedding(32, 8), "rnn": nn.LSTM(8, 16), "out": nn.Linear(16, 32)}
    )
    steps = made(optimizer, layers)
    for batch in tokens():
        steps.zero_grad()
        hidden, _ = layers["rnn"](layers["in"](batch))
        functional.cross_entropy(layers["out"](hidden).flatten(0, 1), batch.flatten()).backward()
        steps.step()


@program("graphs")
def graph(seed: int, optimizer: str) -> None:
    torch.manual_seed(seed)
    edges = (torch.rand(20, 20) < 0.2).float() + torch.eye(20)
    edges = edges / edges.sum(1, keepdim=True)
    x, y = torch.randn(20, 8), torch.randint(0, 3, (20,))

    class Graph(nn.Module):
        """Two graph convolutions."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)

        def forward(self, nodes: torch.Tensor) -> torch.Tensor:
            """Log-probabilities of classes."""
            hidden = functional.dropout(
                torch.relu(edges @ self.first(nodes)), training=self.training
            )
            return functional.log_softmax(edges @ self.second(hidden), dim=1)

    model = Graph()
    steps = made(optimizer, model)
    for _ in range(STEPS):
        model.train()
        steps.zero_grad()
        functional.nll_loss(model(x), y).backward()
        steps.step()
        model.eval()
        with torch.no_grad():
            model(x)


@program("others")
def autoencoder(seed: int, optimizer: str) -> None:
    torch.manual_seed(seed)
    encoder, decoder = nn.Linear(16, 4), nn.Linear(4, 16)
    steps = OPTIMIZERS[optimizer]([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    for _ in range(STEPS):
        x = torch.randn(8, 16)
        loss = functional.mse_loss(decoder(torch.tanh(encoder(x))), x)
        steps.zero_grad()
        loss.backward()
        steps.step()


@program("others")
def adversarial(seed: int, optimizer: str) -> None:
    torch.manual_seed(seed)
    make = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
    judge = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(), nn.Linear(16, 1))
    makes, judges = made(optimizer, make), made(optimizer, judge)
    loss = nn.BCEWithLogitsLoss()
    for _ in range(STEPS):
        real, fake = torch.randn(8, 8), make(torch.randn(8, 4))
        judges.zero_grad()
        loss(judge(real), torch.ones(8, 1)).backward()
        loss(judge(fake.detach()), torch.zeros(8, 1)).backward()
        judges.step()
        makes.zero_grad()
        loss(judge(fake), torch.ones(8, 1)).backward()
        makes.step()


@program("others")
def regression(seed: int, optimizer: str) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.SiLU(), nn.Linear(16, 1))
    steps = made(optimizer, model)
    for x in DataLoader(TensorDataset(torch.randn(48, 8)), batch_size=8):
        loss = model(x[0]).square().mean()
        loss.backward()
        steps.step()
        model.zero_grad()
