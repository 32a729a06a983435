"""Torch modules with seeded weights, and the same as ONNX models: layers of many kinds.

They hold what CRADLE's classifiers do not: recurrence, attention, transposed convolutions,
interpolation, tokens, several inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

import tapml
from scripts.model_set.datasets import digits

_INSTANCES: Final = 12
_SEED: Final = 7
_NORMALIZATIONS: Final = (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm2d, nn.InstanceNorm2d)


class _Recurrent(nn.Module):
    """Rows of a digit, one after the other."""

    def __init__(self, kind: Callable[..., nn.Module], both: bool) -> None:
        super().__init__()
        self.cells = kind(8, 12, num_layers=2 - both, batch_first=True, bidirectional=both)
        self.last = nn.Linear(12 * (1 + both), 10)

    def forward(self, rows: Tensor) -> Tensor:
        return torch.log_softmax(self.last(self.cells(rows)[0].mean(1)), -1)


class _Attentive(nn.Module):
    """Rows of a digit, each of which looks at those before."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.merge = nn.Linear(8, 3 * 16), nn.Linear(16, 16)
        self.norm, self.after = nn.LayerNorm(16, eps=1e-3), nn.LayerNorm(16)
        self.wide, self.narrow = nn.Linear(16, 32), nn.Linear(32, 16)
        self.last = nn.Linear(16, 10)

    def forward(self, rows: Tensor) -> Tensor:
        query, key, value = (
            each.unflatten(-1, (2, 8)).transpose(1, 2) for each in self.lift(rows).chunk(3, -1)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = self.norm(0.1 * self.merge(mixed.transpose(1, 2).flatten(-2)))
        x = self.after(x + self.narrow(nn.functional.gelu(self.wide(x))))
        return torch.softmax(self.last(x.mean(1)), -1)


class _Restoring(nn.Module):
    """A picture from eight numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(8, 8 * 9)
        self.up = nn.ConvTranspose2d(8, 8, 3, stride=2, padding=1, output_padding=1)
        self.mix, self.last = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 1, 3, padding=2, dilation=2)

    def forward(self, code: Tensor) -> Tensor:
        x = nn.functional.elu(self.up(self.lift(code).unflatten(-1, (8, 3, 3))), 0.7)
        x = nn.functional.pixel_shuffle(x, 2)
        x = nn.functional.interpolate(x, size=(20, 20), mode="bilinear", align_corners=False)
        x = self.mix(nn.functional.pad(x, (1, 1, 1, 1), mode="reflect"))
        return torch.sigmoid(self.last(nn.functional.softplus(x)))


class _Reading(nn.Module):
    """Token ids; 0 is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(40, 16), nn.Embedding(10, 16)
        self.norm, self.last = nn.GroupNorm(4, 16), nn.Linear(16, 4)

    def forward(self, words: Tensor) -> Tensor:
        there = words > 0
        places = torch.cumsum(there.long(), 1)
        x = torch.where(there[..., None], self.words(words) + self.places(places), 0.0)
        x = x.sum(1) / there.sum(1, keepdim=True).clamp(min=1)
        return torch.softmax(self.last(self.norm(x)), -1)


class _Measuring(nn.Module):
    """Two inputs, two outputs, and what is seldom between them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(6, 8), nn.Linear(5, 8)

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.one(left), self.other(right).clamp(-0.5, 0.8)
        x = torch.einsum("ni,nj->nij", a, b)
        x = torch.cat([x, x.transpose(1, 2).roll(1, 1)], 1)
        best, _ = x.flatten(1).topk(5)
        spread = x.var(2) + torch.logsumexp(x, 2)
        return best.flip(1), torch.pow(spread.abs(), 1.5)


class _Squeezing(nn.Module):
    """A residual block whose channels are weighed by their means."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.norm, self.slope = nn.InstanceNorm2d(8, affine=True), nn.PReLU(8, 0.3)
        self.weigh, self.last = nn.Linear(8, 8), nn.Linear(8 * 16, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.slope(self.norm(self.first(image)))
        x = x + nn.functional.glu(self.second(x), 1)
        x = x * torch.sigmoid(self.weigh(x.mean((2, 3))))[:, :, None, None]
        return torch.softmax(self.last(nn.functional.adaptive_avg_pool2d(x, 4).flatten(1)), -1)


def _convolving() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.LeakyReLU(0.2),
        nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8), nn.Hardswish(),
        nn.AvgPool2d(3, 1, padding=1), nn.MaxPool2d(3, 2, ceil_mode=True), nn.Flatten(),
        nn.Linear(32, 10), nn.Softmax(-1),
    )  # fmt: skip


def _images() -> dict[str, Any]:
    return {"image": digits(8).inputs.transpose(0, 3, 1, 2)[:_INSTANCES]}


def _rows() -> dict[str, Any]:
    return {"rows": digits(8).inputs[:_INSTANCES, :, :, 0]}


def _drawn(**shapes: tuple[int, ...]) -> dict[str, Any]:
    random = np.random.default_rng(_SEED)
    return {name: random.normal(size=(_INSTANCES, *shape)).astype(np.float32)
            for name, shape in shapes.items()}  # fmt: skip


def _words() -> dict[str, Any]:
    random = np.random.default_rng(_SEED)
    lengths = random.integers(3, 10, (_INSTANCES, 1))
    words = random.integers(1, 40, (_INSTANCES, 9))
    return {"words": np.where(np.arange(9) < lengths, words, 0)}


_Made = tuple[Callable[[], nn.Module], Callable[[], Mapping[str, Any]]]
TORCH_MODULES: Final[dict[str, _Made]] = {
    "torch-convolving": (_convolving, _images),
    "torch-lstm": (lambda: _Recurrent(nn.LSTM, both=False), _rows),
    "torch-gru": (lambda: _Recurrent(nn.GRU, both=True), _rows),
    "torch-attentive": (_Attentive, _rows),
    "torch-restoring": (_Restoring, lambda: _drawn(code=(8,))),
    "torch-reading": (_Reading, _words),
    "torch-measuring": (_Measuring, lambda: _drawn(left=(6,), right=(5,))),
    "torch-squeezing": (_Squeezing, _images),
}


def make_torch_modules(folder: Path) -> None:
    """Write ``NAME.module``, ``NAME-graph.onnx`` and their data, where they are not there."""
    from tapml.backends.torch_export import to_onnx
    from tapml.backends.torch_graph import TorchGraph

    for name, (make, data) in TORCH_MODULES.items():
        module, graph = folder / f"{name}.module", folder / f"{name}-graph.onnx"
        if module.exists() and graph.exists():
            continue
        torch.manual_seed(_SEED)
        made, arrays = make(), data()
        modules: list[Any] = list(made.modules())
        for each in modules:
            # As training would: not 0 and 1, and not the same for all.
            if type(each) in _NORMALIZATIONS:
                nn.init.uniform_(each.weight, 0.5, 1.5)
                nn.init.normal_(each.bias, std=0.2)
            if isinstance(each, nn.PReLU):
                nn.init.uniform_(each.weight, 0.1, 0.9)
            if getattr(each, "running_var", None) is not None:
                nn.init.uniform_(each.running_var, 1e-3, 0.1)
                nn.init.normal_(each.running_mean, std=0.2)
        given = tuple(map(torch.from_numpy, map(np.ascontiguousarray, arrays.values())))
        tapml.from_torch(made.eval(), given).save(module)
        read = TorchGraph(module)
        named = dict(zip([each.name for each in read.inputs()], arrays.values(), strict=True))
        graph.write_bytes(to_onnx(read.whole(), named))
        for file in (module, graph):
            np.savez(file.with_suffix(".npz"), **named)
