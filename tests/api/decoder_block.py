"""A Llama decoder block written for Relax, its weights as inputs, and the same in numpy."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op

Array = npt.NDArray[Any]

LENGTH: Final = 24
WIDTH: Final = 64
HEADS: Final = 4
HEAD: Final = WIDTH // HEADS
INNER: Final = 172
EPSILON: Final = 1e-5


class DecoderBlock(nn.Module):  # type: ignore[misc]
    """Attention and a gated perceptron, each normed before and added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(WIDTH, axes=-1, epsilon=EPSILON, bias=False)
        self.perceptron_norm = nn.RMSNorm(WIDTH, axes=-1, epsilon=EPSILON, bias=False)
        for name in ("query", "key", "value", "mix"):
            setattr(self, name, nn.Linear(WIDTH, WIDTH, bias=False))
        self.gate = nn.Linear(WIDTH, INNER, bias=False)
        self.up = nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def transformer_block(self, hidden: nn.Tensor, mask: nn.Tensor) -> nn.Tensor:
        """``[1, LENGTH, WIDTH]``; `mask` is added to the scores."""
        normed = self.attention_norm(hidden)
        query, key, value = (
            op.permute_dims(op.reshape(linear(normed), (1, LENGTH, HEADS, HEAD)), (0, 2, 1, 3))
            for linear in (self.query, self.key, self.value)
        )
        scores = op.matmul(query, op.permute_dims(key, (0, 1, 3, 2))) * HEAD**-0.5 + mask
        mixed = op.permute_dims(op.matmul(op.softmax(scores, axis=-1), value), (0, 2, 1, 3))
        hidden = hidden + self.mix(op.reshape(mixed, (1, LENGTH, WIDTH)))
        normed = self.perceptron_norm(hidden)
        return hidden + self.down(op.silu(self.gate(normed)) * self.up(normed))


def relax_module() -> Any:
    """The block as an IRModule with one function, ``transformer_block``."""
    module, _ = DecoderBlock().export_tvm(
        spec={
            "transformer_block": {
                "hidden": nn.spec.Tensor([1, LENGTH, WIDTH], "float32"),
                "mask": nn.spec.Tensor([1, 1, LENGTH, LENGTH], "float32"),
                "$": {"param_mode": "plain", "effect_mode": "none"},
            }
        }
    )
    return module


def inputs(module: Any, seed: int = 0) -> list[Array]:
    """Hidden states, causal mask, then a weight for every further parameter."""
    generator = np.random.default_rng(seed)
    arrays: list[Array] = []
    for parameter in module["transformer_block"].params:
        shape = tuple(int(extent) for extent in parameter.ty.shape)
        if str(parameter.name) == "mask":
            arrays.append(np.triu(np.full(shape, -1e9, np.float32), 1))
        elif "norm" in str(parameter.name):
            arrays.append(generator.uniform(0.5, 1.5, shape).astype(np.float32))
        else:
            scale = 1.0 if str(parameter.name) == "hidden" else shape[-1] ** -0.5
            arrays.append((generator.standard_normal(shape) * scale).astype(np.float32))
    return arrays


def in_float64(module: Any, arrays: list[Array]) -> Array:
    """What the block computes, in numpy and float64."""
    names = [str(parameter.name) for parameter in module["transformer_block"].params]
    given = {
        name.removesuffix(".weight"): array.astype(np.float64)
        for name, array in zip(names, arrays, strict=True)
    }

    def norm(x: Array, name: str) -> Array:
        scaled: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * given[name]
        return scaled

    def heads(x: Array) -> Array:
        return x.reshape(1, LENGTH, HEADS, HEAD).transpose(0, 2, 1, 3)

    hidden = given["hidden"]
    normed = norm(hidden, "attention_norm")
    query, key, value = (heads(normed @ given[n].T) for n in ("query", "key", "value"))
    scores = query @ key.transpose(0, 1, 3, 2) * HEAD**-0.5 + given["mask"]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed = (weights @ value).transpose(0, 2, 1, 3).reshape(1, LENGTH, WIDTH)
    hidden = hidden + mixed @ given["mix"].T
    normed = norm(hidden, "perceptron_norm")
    gate, up = normed @ given["gate"].T, normed @ given["up"].T
    block: Array = hidden + (gate / (1 + np.exp(-gate)) * up) @ given["down"].T
    return block
