"""Small torch modules that cover the importer, each with example inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tapml.execute.arrays import Array
from tapml.importing.imported import ImportedModel
from tapml.plan.rooting_report import RootingReport
from tapml.rooting.rooting import root_runs


class Apply(nn.Module):
    """A function of one tensor as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, operand: Tensor) -> Any:
        """Apply the function."""
        return self.function(operand)


def _transposed(rows: Tensor) -> Tensor:
    """Products of transposed matrices that something else reads, and of one with itself."""
    turned = rows[0].t()
    square = (rows[1] @ turned + turned.sum(0)).t()
    return square @ square + square.t() @ rows[0].sum(1)


def examples() -> dict[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    """Modules and their inputs by name, the same in every run."""
    torch.manual_seed(3)
    rows = torch.randn(2, 6, 8)
    image = torch.randn(1, 3, 8, 8)
    return {
        "convolution": (
            nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            (image,),
        ),
        "batch norm": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GELU()), (image,)),
        "layer norm": (nn.LayerNorm(8), (rows,)),
        "softmax": (nn.Softmax(-1), (rows,)),
        "gelu tanh": (nn.GELU(approximate="tanh"), (rows,)),
        "perceptron": (nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 4)), (rows,)),
        "perceptron float64": (nn.Linear(8, 4).double(), (rows.double(),)),
        "perceptron float16": (nn.Linear(8, 4).half(), (rows.half(),)),
        "convolution float16": (nn.Conv2d(3, 4, 3).half(), (image.half(),)),
        "recurrent": (nn.LSTM(8, 4, batch_first=True), (rows,)),
        "embedding": (nn.Embedding(10, 4), (torch.tensor([[1, 2, 9]]),)),
        "transposed matrices": (Apply(_transposed), (rows,)),
        "running sum": (Apply(lambda t: torch.cumsum(t, -1) + 1), (rows,)),
        "running sum inside": (Apply(lambda t: torch.cumsum(t, 1)), (rows,)),
        "running product": (Apply(lambda t: torch.cumprod(t, -1)), (rows,)),
        "sort": (Apply(lambda t: torch.sort(t, -1)), (rows,)),
        "topk": (Apply(lambda t: torch.topk(t, 3)), (rows,)),
        "topk of equals": (Apply(lambda t: torch.topk(t.sign(), 3)[0]), (rows,)),
        "whole quotients": (Apply(lambda t: (t * 9).long() // 3), (rows,)),
        "argmax": (Apply(lambda t: torch.argmax(t, -1)), (rows,)),
        "predicate": (Apply(lambda t: t > 0), (rows,)),
        "scalar": (Apply(lambda t: t.sum()), (rows,)),
        "scalar inside": (Apply(lambda t: t - t.sum()), (rows,)),
        "nothing": (Apply(lambda t: t), (rows,)),
        "view": (Apply(lambda t: t.reshape(12, 8)), (rows,)),
        "constant": (Apply(lambda t: t + torch.arange(8.0)), (rows,)),
        "parts": (Apply(lambda t: torch.split(t, 2, 1)), (rows,)),
        "in place on its own": (Apply(lambda t: t.clone().add_(1).mul_(2)), (rows,)),
        "open clamp": (Apply(lambda t: t.clamp(-0.5)), (rows,)),
        "open clamp of integers": (Apply(lambda t: t.int().clamp(min=0)), (rows * 5,)),
    }


def root_module(imported: ImportedModel, inputs: Sequence[Array]) -> RootingReport:
    """Compare the plan of a torch module with the module on `inputs`."""
    ((name, entry),) = imported.plan.entries.items()
    return root_runs(imported, [(name, dict(zip(entry.inputs, inputs, strict=True)))])
