"""Errors of one process, in plain PyTorch: what the reports describe, in a few lines each."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from scripts.training_errors.case import case
from tapml.invariants import set_meta

STEPS = 6


class Net(nn.Module):
    """Two layers with a norm between them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        found: torch.Tensor = self.head(torch.relu(self.norm(self.body(x))))
        return found


def batches(seed: int, count: int = STEPS, rows: int = 8) -> list[tuple[torch.Tensor, ...]]:
    """Random rows with labels."""
    torch.manual_seed(seed)
    return [(torch.randn(rows, 8), torch.randint(0, 4, (rows,))) for _ in range(count)]


def train(
    model: nn.Module, data: list[tuple[torch.Tensor, ...]], optimizer: torch.optim.Optimizer
) -> None:
    """The usual loop."""
    for x, y in data:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """Adam on what the model trains."""
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)


@case("B1", "only BatchNorm layers are trained", "VarPeriodicChange", trigger=1)
def frozen(seed: int, buggy: bool) -> None:
    data, model = batches(seed), Net()
    for name, parameter in model.named_parameters():
        parameter.requires_grad = not buggy or name.startswith("norm")
    train(model, data, adam(model))


@case("B4", "zero_grad is missing", "APISequence", trigger=1)
def missing_zero_grad(seed: int, buggy: bool) -> None:
    data, model = batches(seed), Net()
    optimizer = adam(model)
    for x, y in data:
        if not buggy:
            optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()


class Truncate(nn.Module):
    """A processor that shortens rows."""

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.extra = extra

    def forward(self, x: torch.Tensor, max_length: int) -> torch.Tensor:
        """The first entries of each row."""
        return x[:, : max_length + self.extra]


@case("B5", "truncation returns more than max_length", "APIOutput")
def truncation(seed: int, buggy: bool) -> None:
    data, processor = batches(seed), Truncate(2 if buggy else 0)
    model = nn.Linear(6, 4)
    optimizer = adam(model)
    for x, y in data:
        optimizer.zero_grad()
        # The error makes rows longer than the model was configured for; it takes what it can.
        found = model(processor(x, max_length=6)[:, :6])
        functional.cross_entropy(found, y).backward()
        optimizer.step()


class Noise(Dataset[torch.Tensor]):
    """Rows from NumPy's global generator, as augmentations take them."""

    def __len__(self) -> int:
        return 8 * STEPS

    def __getitem__(self, place: int) -> torch.Tensor:
        return torch.from_numpy(np.random.rand(8).astype("float32"))  # noqa: NPY002


def _same_seed(worker: int) -> None:
    np.random.seed(7)  # noqa: NPY002 - the error


def _own_seed(worker: int) -> None:
    np.random.seed(torch.initial_seed() % 2**32)  # noqa: NPY002 - as PyTorch's documentation has it


@case("B6", "workers of the data loader have the same seed", "DistinctBatches", trigger=1)
def worker_seeds(seed: int, buggy: bool) -> None:
    torch.manual_seed(seed)
    model = Net()
    optimizer = adam(model)
    init = _same_seed if buggy else _own_seed
    for x in DataLoader(Noise(), batch_size=8, num_workers=2, worker_init_fn=init):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


class Block(nn.Module):
    """A layer; the transform around it may lose the autocast context."""

    def __init__(self, lost: bool) -> None:
        super().__init__()
        self.layer, self.lost = nn.Linear(8, 4), lost

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's result."""
        with torch.autocast("cpu", enabled=torch.is_autocast_enabled("cpu") and not self.lost):
            found: torch.Tensor = self.layer(x)
        return found


@case("B7", "a transform ignores the autocast context", "APIOutput")
def autocast(seed: int, buggy: bool) -> None:
    data, model = batches(seed), Block(buggy)
    optimizer = adam(model)
    for x, y in data:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = model(x)
        functional.cross_entropy(found.float(), y).backward()
        optimizer.step()


@case("B8", "a stale compiled graph leaves the model as it is", "VarPeriodicChange", trigger=2)
def stale_graph(seed: int, buggy: bool) -> None:
    data, model = batches(seed), Net()
    bias = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.Adam([*model.parameters(), bias], lr=1e-3)
    for step, (x, y) in enumerate(data):
        optimizer.zero_grad()
        # The graph of a forward call without gradients is used again.
        with torch.set_grad_enabled(not buggy or step < 2):
            found = model(x)
        functional.cross_entropy(found + bias, y).backward()
        optimizer.step()


class Processor(nn.Module):
    """Makes inputs of several items."""

    def __init__(self, first_only: bool) -> None:
        super().__init__()
        self.first_only = first_only

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        """The inputs of all items, or of the first."""
        return items[:1] if self.first_only else items * 1.0


@case("B11", "a processor returns the first of several items", "APIOutput")
def first_item(seed: int, buggy: bool) -> None:
    data, model, processor = batches(seed), nn.Linear(8, 4), Processor(buggy)
    optimizer = adam(model)
    for x, y in data:
        optimizer.zero_grad()
        found = model(processor(x))
        functional.cross_entropy(found, y[: len(found)]).backward()
        optimizer.step()


class Attention(nn.Module):
    """Drops attention weights; ``always`` also in evaluation."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.layer, self.always = nn.Linear(8, 4), always

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        kept = functional.dropout(x, 0.1, training=self.training or self.always)
        found: torch.Tensor = self.layer(kept)
        return found


@case("B12", "dropout stays on in evaluation", "APIArg", trigger=STEPS)
def dropout_in_evaluation(seed: int, buggy: bool) -> None:
    data, model = batches(seed), Attention(buggy)
    train(model, data, adam(model))
    model.eval()
    with torch.no_grad():
        for x, _ in data[:3]:
            model(x)


class Part(nn.Module):
    """A model whose parts each initialise themselves; what holds a part finds it done."""

    def __init__(self, forgetful: bool) -> None:
        super().__init__()
        self.forgetful = forgetful

    def after_init(self) -> None:
        """Initialise what is not initialised yet; with the error, nothing is known to be."""
        for module in self.modules():
            if isinstance(module, nn.Linear) and not getattr(module, "initialised", False):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
                module.initialised = not self.forgetful  # type: ignore[assignment]


class Body(Part):
    """What can be used alone."""

    def __init__(self, forgetful: bool) -> None:
        super().__init__(forgetful)
        self.layer = nn.Linear(8, 16)
        self.after_init()


class Classifier(Part):
    """A body and a head."""

    def __init__(self, forgetful: bool) -> None:
        super().__init__(forgetful)
        self.body, self.head = Body(forgetful), nn.Linear(16, 4)
        self.after_init()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        found: torch.Tensor = self.head(torch.relu(self.body.layer(x)))
        return found


@case("B13", "parts of a model are initialised repeatedly", "InitialisedOnce", trigger=-1)
def repeated_initialisation(seed: int, buggy: bool) -> None:
    data = batches(seed)
    model = Classifier(forgetful=buggy)
    train(model, data, adam(model))


@case("B14", "weights are missing in the checkpoint", "CheckpointKeys", trigger=STEPS)
def lost_weights(seed: int, buggy: bool) -> None:
    data, model = batches(seed), Net()
    train(model, data, adam(model))
    state: dict[str, Any] = dict(model.state_dict())
    if buggy:
        del state["norm.weight"]
    torch.save({"model": state, "step": len(data)}, io.BytesIO())


@case("B15", "training stops before the planned steps", "PlannedSteps", trigger=STEPS // 2 - 1)
def early_stop(seed: int, buggy: bool) -> None:
    set_meta(planned_steps=STEPS)
    model = Net()
    train(model, batches(seed)[: STEPS // 2 if buggy else STEPS], adam(model))
    set_meta(planned_steps=None)


@case("B19", "spectral norm is evaluated before any training", "EvaluatedAfterTraining")
def early_evaluation(seed: int, buggy: bool) -> None:
    data = batches(seed)
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 4)))
    if buggy:
        model.eval()
        model(data[0][0])
        model.train()
    train(model, data, adam(model))
    model.eval()
    model(data[0][0])


@case("B20", "the call that freezes a stage is missing", "VariableAttribute")
def missing_freeze(seed: int, buggy: bool) -> None:
    data, model = batches(seed), Net()
    for name, parameter in model.named_parameters():
        parameter.requires_grad = buggy or not name.startswith("body")
    train(model, data, adam(model))


@case("AC-2665", "the optimizer is made before the model is wrapped", "OptimizerParameters")
def early_optimizer(seed: int, buggy: bool) -> None:
    data, model = batches(seed), Net()
    optimizer = adam(model)
    if buggy:
        model = Net()
    train(model, data, optimizer if buggy else adam(model))


@case("DS-6770", "the optimizer holds parameters of another model", "OptimizerParameters")
def other_parameters(seed: int, buggy: bool) -> None:
    data, model = batches(seed), Net()
    other = nn.Linear(8, 16) if buggy else model.body
    optimizer = torch.optim.Adam(
        [*model.norm.parameters(), *model.head.parameters(), *other.parameters()], lr=1e-3
    )
    train(model, data, optimizer)


class Stages(nn.Module):
    """Two stages; ``id`` says on which device each belongs."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([nn.Linear(8, 16), nn.Linear(16, 4)])
        for place, stage in enumerate(self.stages):
            stage.id = place  # type: ignore[assignment]

    def placed(self) -> Stages:
        """Each stage on its device."""
        for stage in self.stages:
            stage.to(torch.device("cpu", int(stage.id)))  # type: ignore[arg-type]
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        first, second = self.stages
        found: torch.Tensor = second(torch.relu(first(x)))
        return found


def _engine(model: nn.Module, name: str) -> nn.Module:
    """A training library that numbers all modules, under a name of its own or the model's."""
    for count, module in enumerate(model.modules()):
        setattr(module, name, count)
    return model


@case("DS-6772", "a library overwrites the model's ids", "AttributeKept", trigger=-1)
def overwritten_ids(seed: int, buggy: bool) -> None:
    data, model = batches(seed), Stages()
    _engine(model, "id" if buggy else "engine_id")
    train(model.placed(), data, adam(model))


@case("DS-5489", "frozen parameters are missing in the checkpoint", "CheckpointKeys", trigger=STEPS)
def lost_frozen(seed: int, buggy: bool) -> None:
    data, model = batches(seed), Net()
    model.body.requires_grad_(False)
    train(model, data, adam(model))
    trained = {name for name, each in model.named_parameters() if each.requires_grad}
    state = {
        name: each for name, each in model.state_dict().items() if not buggy or name in trained
    }
    torch.save(state, io.BytesIO())
