"""Training invariants: watched beside plain steps, learning, and what a call of an API costs.

CPU seconds of one process with one thread. Plain and watched steps alternate in short rounds, each
on a copy of one model, so that other work on the machine hits both alike; the ratio is that of
the medians, of the steps from the fifth of a round on. The losses of both must be equal bit for
bit.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from tapml.invariants.inference import infer
from tapml.invariants.invariant import InvariantSet, read_set
from tapml.invariants.recording import recorded
from tapml.invariants.watching import watch

WATCHED: Final = 100
ROUNDS: Final = 12
# Steps of the short and the long run, and what a row may cost more in the long one.
LENGTHS: Final = (25, 200)
REPEATS: Final = 5
SETTLED: Final = 4
LINEAR: Final = 1.25


class Gpt(nn.Module):
    """A decoder of 0.9 million parameters: 4 layers, width 128, 256 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, 128)
        self.places = nn.Embedding(64, 128)
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.norm = nn.LayerNorm(128)
        self.head = nn.Linear(128, 256, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits, float32 ``(rows, length, 256)``, of int64 tokens ``(rows, length)``."""
        hidden = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            hidden = layer(hidden)
        logits: torch.Tensor = self.head(self.norm(hidden))
        return logits


class Layer(nn.Module):
    """Attention and a perceptron, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(128), nn.LayerNorm(128)
        self.attention, self.out = nn.Linear(128, 384), nn.Linear(128, 128)
        self.up, self.down = nn.Linear(128, 512), nn.Linear(512, 128)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """As `hidden`, float32 ``(rows, length, 128)``."""
        rows, length, _ = hidden.shape
        parts = self.attention(self.first(hidden)).view(rows, length, 3, 4, 32).transpose(1, 3)
        query, key, value = parts.unbind(2)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(rows, length, 128))
        perceptron: torch.Tensor = self.down(functional.gelu(self.up(self.second(hidden))))
        return hidden + perceptron


@dataclass
class Training:
    """A model with its optimizer, and batches without end."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: Callable[[int], tuple[torch.Tensor, torch.Tensor]]
    steps: int = 0

    def run(self, count: int) -> tuple[list[float], list[float]]:
        """Train; returns the losses, and CPU seconds of each step."""
        losses, seconds = [], []
        for _ in range(count):
            inputs, targets = self.batch(self.steps)
            begun = time.thread_time()
            self.optimizer.zero_grad()
            logits = self.model(inputs)
            loss = functional.cross_entropy(logits.flatten(0, -2), targets.flatten())
            torch.autograd.backward(loss)
            self.optimizer.step()
            seconds.append(time.thread_time() - begun)
            losses.append(loss.item())
            self.steps += 1
        return losses, seconds


def gpt() -> Training:
    """8 rows of 64 tokens."""
    torch.manual_seed(0)
    data = torch.randint(0, 256, (16, 8, 65))
    model = Gpt()
    return Training(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        lambda step: (data[step % 16, :, :-1], data[step % 16, :, 1:]),
    )


def cnn() -> Training:
    """The digits of scikit-learn, 64 a batch."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.from_numpy(digits.images).float()[:, None] / 16
    labels = torch.from_numpy(digits.target)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )

    def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        begin = step * 64 % 1728
        return images[begin : begin + 64], labels[begin : begin + 64]

    return Training(model, torch.optim.Adam(model.parameters(), lr=1e-3), batch)


WORKLOADS: Final[dict[str, tuple[Callable[[], Training], int, float]]] = {
    "GPT, 0.9 million parameters": (gpt, 12, 1.05),
    "CNN of two layers": (cnn, 40, 1.5),
}


def watched_set(make: Callable[[], Training]) -> InvariantSet:
    """What two runs show, filled up to 100 invariants with the curated ones."""
    runs = []
    for _ in range(2):
        with recorded() as recording:
            make().run(5)
        runs.append(recording.run())
    learned = infer(runs)
    known = {each.id for each in learned.invariants}
    curated = read_set(Path("pytorch"))
    more = [each for each in curated.invariants if each.id not in known]
    chosen = [*learned.selected(WATCHED).invariants, *more]
    return InvariantSet(learned.format, learned.runs, chosen[:WATCHED])


def overhead(name: str) -> dict[str, Any]:
    """A watched step beside a plain one."""
    make, steps, bar = WORKLOADS[name]
    invariants = watched_set(make)
    plain, seen = make(), make()
    times: dict[str, list[float]] = {"plain": [], "watched": []}
    equal = True
    for number in range(ROUNDS + 1):
        found: dict[str, list[float]] = {}
        for kind in ("plain", "watched") if number % 2 else ("watched", "plain"):
            if kind == "plain":
                found[kind], seconds = plain.run(steps)
            else:
                with watch(seen.model, seen.optimizer, invariants=invariants) as watched:
                    found[kind], seconds = seen.run(steps)
                if watched.report().violated:
                    raise RuntimeError(watched.report().headline)
            # The first steps of a round meet cold caches, and a watch that has seen no step yet.
            if number:
                times[kind] += seconds[SETTLED:]
        equal = equal and found["plain"] == found["watched"]
    middle = {kind: statistics.median(each) for kind, each in times.items()}
    ratio = middle["watched"] / middle["plain"]
    return {
        "part": "invariants",
        "name": f"watched, {name}",
        "invariants": len(invariants.invariants),
        "applied": watched.report().held,
        "plain_ms": round(1e3 * middle["plain"], 3),
        "watched_ms": round(1e3 * middle["watched"], 3),
        "ratio": round(ratio, 3),
        "at_most": bar,
        "losses_equal": equal,
        "met": equal and ratio <= bar,
    }


def growth() -> dict[str, Any]:
    """Learning from a trace of many steps beside one of few."""
    seconds, rows = [], []
    for steps in LENGTHS:
        with recorded() as recording:
            cnn().run(steps)
        run = recording.run()
        # Relations are found and imported the first time.
        infer([run])
        begun = time.process_time()
        for _ in range(REPEATS):
            infer([run])
        seconds.append((time.process_time() - begun) / REPEATS)
        rows.append(len(recording.rows))
    ratio = (seconds[1] / rows[1]) / (seconds[0] / rows[0])
    return {
        "part": "invariants",
        "name": f"learning per row, {LENGTHS[1]} steps beside {LENGTHS[0]}",
        "rows": rows,
        "ms": [round(1e3 * each, 1) for each in seconds],
        "ratio": round(ratio, 2),
        "at_most": LINEAR,
        "met": ratio <= LINEAR,
    }


def measure() -> list[dict[str, Any]]:
    """All rows."""
    torch.set_num_threads(1)
    return [*(overhead(name) for name in WORKLOADS), growth()]
