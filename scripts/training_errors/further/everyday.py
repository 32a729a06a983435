"""Usual scripts with everyday mistakes: epochs, a schedule, clipping, evaluation, checkpoints."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from scripts.training_errors.further.program import program, rows_of, step


class _Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.dropout, self.head = nn.Dropout(0.1), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.dropout(torch.relu(self.norm(self.body(x)))))
        return found


class Script:
    """Trains for two epochs, evaluates and saves; a mistake is made where its name is asked for."""

    def __init__(self, seed: int, mistake: str = "") -> None:
        torch.manual_seed(seed)
        self.mistake, rows = mistake, rows_of(seed)
        data = TensorDataset(torch.randn(4 * rows, 8), torch.randint(0, 4, (4 * rows,)))
        self.loader = DataLoader(data, batch_size=rows, shuffle=mistake != "shuffle-lost")
        self.held_out = DataLoader(data, batch_size=rows)
        self.model = _Classifier()
        prefix = "model." if mistake == "weights-not-matched" else ""
        stored = {f"{prefix}{name}": each for name, each in self.model.state_dict().items()}
        self.model.load_state_dict(copy.deepcopy(stored), strict=False)
        self.parameters = list(self.model.parameters())
        another = mistake == "clips-another-model"
        self.clipped = list(_Classifier().parameters()) if another else self.parameters
        copied = mistake == "evaluates-a-copy"
        self.evaluated = copy.deepcopy(self.model) if copied else self.model
        self._make_optimizer()

    def _make_optimizer(self) -> None:
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, total_iters=8)

    def run(self) -> None:
        """Train."""
        for _ in range(2):
            self.model.train()
            if self.mistake == "norms-stay-fixed":
                self.model.norm.eval()
            if self.mistake == "optimizer-each-epoch":
                self._make_optimizer()
            before = None
            for x, y in self.loader:
                self.optimizer.zero_grad()
                self._loss(x, self._labels(y, before)).backward()
                before = y
                self._step()
                if self.mistake == "epoch-broken-off":
                    break
            self._evaluate()

    def _labels(self, y: torch.Tensor, before: torch.Tensor | None) -> torch.Tensor:
        if self.mistake == "labels-rolled":
            return y.roll(1)
        return before if self.mistake == "labels-of-before" and before is not None else y

    def _loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = self.model(x)
        if self.mistake == "softmax-twice":
            logits = logits.softmax(-1)
        smoothing = 0.0 if self.mistake == "smoothing-lost" else 0.1
        reduction = "sum" if self.mistake == "summed-loss" else "mean"
        return functional.cross_entropy(logits, y, label_smoothing=smoothing, reduction=reduction)

    def _step(self) -> None:
        if self.mistake == "clears-before-step":
            self.optimizer.zero_grad()
        if self.mistake == "detached-gradients":
            for each in self.parameters:
                each.grad = None
        if self.mistake in ("schedule-first", "schedule-twice"):
            self.schedule.step()
        nn.utils.clip_grad_norm_(self.clipped, 1.0)
        self.optimizer.step()
        if self.mistake == "steps-twice":
            self.optimizer.step()
        if self.mistake != "schedule-first":
            self.schedule.step()
        if self.mistake == "initialised-again":
            self.model.head.reset_parameters()

    def _evaluate(self) -> None:
        if self.mistake != "evaluates-in-training":
            self.evaluated.eval()
        with torch.no_grad():
            for x, y in self.held_out:
                functional.cross_entropy(self.evaluated(x), y)
        if self.mistake == "stays-in-evaluation":
            self.model.train = lambda mode=True: self.model  # type: ignore[method-assign]
        saved = _Classifier() if self.mistake == "saves-another" else self.evaluated
        torch.save(saved.state_dict(), io.BytesIO())


_MISTAKES: Final = {
    "clears-before-step": "gradients are cleared between backward and the step",
    "clips-another-model": "the gradients of another model are clipped",
    "detached-gradients": "gradients are set to None before the step",
    "epoch-broken-off": "a break is left in the loop over an epoch",
    "evaluates-a-copy": "a copy of the model is evaluated and saved, which is never trained",
    "evaluates-in-training": "the model is evaluated in training mode",
    "initialised-again": "a layer is initialised again after each step",
    "labels-of-before": "labels are those of the batch before",
    "labels-rolled": "labels are given to the next samples of their batch",
    "norms-stay-fixed": "a BatchNorm layer is in evaluation mode while the model trains",
    "optimizer-each-epoch": "each epoch makes an optimizer, which forgets its moments",
    "saves-another": "the checkpoint has the weights of another model of the class",
    "schedule-first": "the schedule moves before the optimizer steps",
    "schedule-twice": "the schedule moves twice a step",
    "shuffle-lost": "the data loader does not shuffle",
    "smoothing-lost": "labels are not smoothed",
    "softmax-twice": "the cross entropy gets probabilities, not logits",
    "stays-in-evaluation": "the model stays in evaluation mode after the first evaluation",
    "steps-twice": "the optimizer steps twice on one gradient",
    "summed-loss": "the loss is summed over the batch, not averaged",
    "weights-not-matched": "no key of the loaded weights is one of the model",
}


def _register(mistake: str, says: str) -> None:
    @program(mistake, says)
    def run(seed: int, buggy: bool) -> None:
        Script(seed, mistake if buggy else "").run()


for _mistake, _says in _MISTAKES.items():
    _register(_mistake, _says)


@program("sampler-one-order", "a distributed sampler is not told the epoch, so its order is one")
def _sampler(seed: int, buggy: bool) -> None:
    torch.manual_seed(seed)
    rows = rows_of(seed)
    data = TensorDataset(torch.randn(8 * rows, 8), torch.randint(0, 4, (8 * rows,)))
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=2, rank=0, seed=seed)
    loader = DataLoader(data, batch_size=rows, sampler=sampler)
    model = _Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for epoch in range(2):
        if not buggy:
            sampler.set_epoch(epoch)
        for x, y in loader:
            step(optimizer, functional.cross_entropy(model(x), y))


@program("regression-broadcast", "predictions (n, 1) and targets (n) are broadcast to (n, n)")
def _broadcast(seed: int, buggy: bool) -> None:
    torch.manual_seed(seed)
    rows = rows_of(seed)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(8):
        x = torch.randn(rows, 8)
        given = model(x)
        step(optimizer, functional.mse_loss(given if buggy else given.squeeze(-1), x.sum(-1)))


class _Language(nn.Module):
    def __init__(self, *, tied: bool = True, causal: bool = True, axis: int = -1) -> None:
        super().__init__()
        self.tokens, self.mix = nn.Embedding(16, 8), nn.Linear(8, 24)
        self.head = nn.Linear(8, 16, bias=False)
        if tied:
            self.head.weight = self.tokens.weight
        self.causal, self.axis = causal, axis

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        query, key, value = self.mix(self.tokens(tokens)).chunk(3, -1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        # A gate, to normalise over an axis.
        gate = functional.softmax(query, dim=self.axis)
        found: torch.Tensor = self.head(mixed * gate)
        return found


def _texts(seed: int) -> Iterator[torch.Tensor]:
    torch.manual_seed(seed)
    for _ in range(8):
        yield torch.randint(1, 16, (rows_of(seed), 9))


def _language(seed: int, mistake: str = "") -> None:
    torch.manual_seed(seed)
    model = _Language(
        tied=mistake != "untied",
        causal=mistake != "not-causal",
        axis=1 if mistake == "wrong-axis" else -1,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    weights = torch.ones(16)
    for place, tokens in enumerate(_texts(seed)):
        if place == 2 and mistake == "tie-broken":
            model.head.weight = nn.Parameter(model.head.weight.detach().clone())
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(tokens[:, :-1])
            ignored = -100 if mistake == "padding-counted" else 0
            loss = functional.cross_entropy(
                logits.flatten(0, 1),
                tokens[:, 1:].flatten(),
                weight=None if mistake == "class-weights-lost" else weights,
                ignore_index=ignored,
            )
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


_LANGUAGE: Final = {
    "class-weights-lost": "the classes of a loss have no weights",
    "not-causal": "attention sees the tokens to come",
    "padding-counted": "padding is in the loss",
    "tie-broken": "tied weights part in step 2",
    "untied": "weights that are to be tied are not",
    "wrong-axis": "a softmax is over positions, not features",
}


def _register_language(mistake: str, says: str) -> None:
    @program(mistake, says)
    def run(seed: int, buggy: bool) -> None:
        _language(seed, mistake if buggy else "")


for _mistake, _says in _LANGUAGE.items():
    _register_language(_mistake, _says)


@program("resume-moments-lost", "a resumed run does not load the state of its optimizer")
def _moments(seed: int, buggy: bool) -> None:
    torch.manual_seed(seed)
    rows = rows_of(seed)
    model = _Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for place in range(8):
        if place == 4:
            weights, state = model.state_dict(), optimizer.state_dict()
            model = _Classifier()
            model.load_state_dict(weights)
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
            if not buggy:
                optimizer.load_state_dict(state)
        x, y = torch.randn(rows, 8), torch.randint(0, 4, (rows,))
        step(optimizer, functional.cross_entropy(model(x), y))


@program("resume-schedule-lost", "a resumed run does not load the state of its schedule")
def _schedule(seed: int, buggy: bool) -> None:
    torch.manual_seed(seed)
    rows = rows_of(seed)
    model = _Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)
    for place in range(8):
        if place == 4:
            weights, state, moves = (each.state_dict() for each in (model, optimizer, schedule))
            model = _Classifier()
            model.load_state_dict(weights)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer.load_state_dict(state)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)
            if not buggy:
                schedule.load_state_dict(moves)
        x, y = torch.randn(rows, 8), torch.randint(0, 4, (rows,))
        step(optimizer, functional.cross_entropy(model(x), y))
        schedule.step()


@program("features-without-gradients", "features of a backbone are computed without gradients")
def _features(seed: int, buggy: bool) -> None:
    torch.manual_seed(seed)
    rows = rows_of(seed)
    body, head = nn.Linear(8, 16), nn.Linear(16, 4)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-3)
    for _ in range(8):
        x, y = torch.randn(rows, 8), torch.randint(0, 4, (rows,))
        with torch.set_grad_enabled(not buggy):
            hidden = body(x)
        step(optimizer, functional.cross_entropy(head(hidden.relu()), y))
