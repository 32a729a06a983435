"""Loads a torch module into PyTorch, and plants a fault in operations of its program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from scripts.cradle_causes.further import FURTHER
from scripts.cradle_causes.patches import act_at
from tapml.backends.parts import PartsRunner
from tapml.backends.torch_eager.runner import load as load_healthy
from tapml.backends.torch_graph import TorchGraph

Run = Callable[..., Any]
_F: Final = torch.nn.functional


def _dilation(right: Run, x: Any, kernel: Any, *rest: Any) -> Any:
    """With the padding that gives the same shape."""
    given: tuple[Any, ...] = (*rest, *_CONVOLUTION[len(rest) :])
    bias, stride, padding, dilation, groups = given
    inner = [p - (d - 1) * (k - 1) // 2
             for p, d, k in zip(padding, dilation, kernel.shape[2:], strict=True)]  # fmt: skip
    return right(x, kernel, bias, stride, inner, [1, 1], groups)


_CONVOLUTION: Final[tuple[Any, ...]] = (None, [1, 1], [0, 0], [1, 1], 1)


def _ceil_mode(right: Run, x: Any, window: Any, stride: Any = (), *_: Any) -> Any:
    whole, some = right(x, window, stride, *_), _F.max_pool2d(x, window, stride)
    sizes = zip(whole.shape[2:], some.shape[2:], strict=True)
    rows, columns = (torch.arange(each).clamp(max=last - 1) for each, last in sizes)
    return some[:, :, rows][:, :, :, columns]


def _gates(right: Run, x: Any, states: Any, weights: Sequence[Any], *rest: Any) -> Any:
    gates = 4 if isinstance(states, list | tuple) else 3
    parts = [each.chunk(gates) for each in weights]
    return right(x, states, [torch.cat([p[1], p[0], *p[2:]]) for p in parts], *rest)


def _recurrent_bias(right: Run, x: Any, states: Any, weights: Sequence[Any], *rest: Any) -> Any:
    kept = [each * (at % 4 != 3) for at, each in enumerate(weights)]
    return right(x, states, kept, *rest)


def _attended(query: Any, key: Any, value: Any, causal: bool, scale: float) -> Any:
    scores = query @ key.transpose(-1, -2) * scale
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores.softmax(-1) @ value


def _lengthened(size: Sequence[int]) -> list[int]:
    return [1, *size]


_RUNS: Final[dict[str, Run]] = {
    "dilation": _dilation,
    "convolution-bias": lambda right, x, kernel, bias=None, *rest: right(x, kernel, None, *rest),
    "transposed-mirrored": lambda right, x, kernel, *rest: right(x, kernel.flip(2, 3), *rest),
    "ceil-mode": _ceil_mode,
    "pool-count": lambda right, x, window, stride, padding=(0, 0), ceil=False, *_: right(
        x, window, stride, padding, ceil, False),
    "adaptive-maximum": lambda right, x, size: _F.adaptive_max_pool2d(x, size),
    "batch-statistics": lambda right, x, gain, bias, mean, variance, training, *rest: right(
        x, gain, bias, mean.clone(), variance.clone(), True, *rest),
    "one-group": lambda right, x, groups, *rest: right(x, 1, *rest),
    "softmax-axis": lambda right, x, axis, *rest: right(x, (axis % x.ndim) - 1, *rest),
    "slope": lambda right, x, slope=0.01: right(x, 0.01),
    "slope-shared": lambda right, x, slope: right(x, slope[:1].expand_as(slope)),
    "elu-alpha": lambda right, x, alpha=1.0, *rest: right(x, 1.0, *rest),
    "hard-swish": lambda right, x: x * (x + 3).clamp(0, 5) / 6,
    "approximation": lambda right, x, **_: x * torch.sigmoid(1.702 * x),
    "softplus-threshold": lambda right, x, beta=1, threshold=20: right(x, beta, 0.0),
    "clip-upper": lambda right, x, low=None, high=None: right(
        x, low, None if low is not None else high),
    "gates": _gates,
    "recurrent-bias": _recurrent_bias,
    "attention-scale": lambda right, q, k, v, mask=None, dropout=0.0, causal=False, **_: (
        _attended(q, k, v, causal, 1.0)),
    "attention-mask": lambda right, q, k, v, *_, **__: right(q, k, v),
    "row-off": lambda right, table, rows, *rest: right(table, (rows + 1) % len(table), *rest),
    "running-sum": lambda right, x, axis, **named: right(x, axis, **named) - x,
    "corners": lambda right, x, size=None, aligned=False, *rest: right(
        x, size, not aligned, *rest),
    "pixel-order": lambda right, x, by: right(
        x.unflatten(1, (-1, by, by)).transpose(2, 3).flatten(1, 3), by),
    "pad-edge": lambda right, x, pads, mode="constant", value=None: right(
        x, pads, "replicate" if mode == "reflect" else mode, value),
    "joined-backwards": lambda right, parts, axis=0: right(list(parts)[::-1], axis),
    "variance-biased": lambda right, x, axis, unbiased=True, *rest: right(x, axis, False, *rest),
    "logarithm-shift": lambda right, x, axis, keep=False: x.abs().exp().sum(axis, keep).log(),
    "einsum-swapped": lambda right, text, parts, **_: right(text, [parts[0], parts[1].flip(1)]),
    "smallest": lambda right, x, k, axis=-1, largest=True, *rest: right(
        x, k, axis, not largest, *rest),
    "roll-direction": lambda right, x, by, axes=(): right(x, [-each for each in by], axes),
    "exponent": lambda right, x, power: right(x, int(power)),
    "halves-swapped": lambda right, x, axis=-1: right(
        torch.cat(x.chunk(2, axis)[::-1], axis), axis),
    "transposed-square": lambda right, x, one, two: (
        x.clone() if x.shape[one] == x.shape[two] else right(x, one, two)),
    "brain-float": lambda right, x, kernel, bias=None: right(
        x.bfloat16(), kernel.bfloat16(), None if bias is None else bias.bfloat16()).float(),
    "product-nan": lambda right, x: torch.where(x == x.max(), torch.nan, right(x)),
    "fused-activation": lambda right, x, *_, **__: x.clone(),
    "crash-recurrent": lambda right, x, states, *rest: right(x, _joined(states), *rest),
    "crash-interpolation": lambda right, x, size=None, *rest: right(x, _lengthened(size), *rest),
    "crash-attention": lambda right, q, k, v, *_, **__: (q @ k).softmax(-1) @ v,
}  # fmt: skip


def _joined(states: Any) -> Any:
    return states[0] if isinstance(states, list | tuple) else states.flatten(1)


def _norm(right: Run, operation: str, fault: str, values: list[Any]) -> Any:
    """A normalization by its operation's arguments: their places differ."""
    bias, epsilon = {"layer_norm": (3, 4), "group_norm": (3, 4), "batch_norm": (2, 7),
                     "instance_norm": (2, 7)}[operation]  # fmt: skip
    if fault == "norm-bias":
        values[bias] = None
    else:
        values[epsilon : epsilon + 1] = [0.1]
    return right(*values)


def _fault_of(fault: str, operation: str) -> Run:
    if fault.startswith("norm-"):
        return lambda right, *values: _norm(right, operation, fault, list(values))
    if fault == "fused-bias":
        return _RUNS["convolution-bias"]
    return _RUNS[fault]


def _noted(name: str, right: Any, wrong: Run) -> Run:
    """`wrong`, and a note where it gives anything else than `right`."""

    def run(*values: Any, **named: Any) -> Any:
        try:
            found = wrong(right, *values, **named)
        except Exception:
            act_at(name)
            raise
        one, other = (each[0] if isinstance(each, tuple) else each
                      for each in (found, right(*values, **named)))  # fmt: skip
        if one.shape != other.shape or not (
            (one.double() - other.double()).abs().max() <= 1e-5 * other.double().abs().max()
        ):
            act_at(name)
        return found

    run.__name__, run.__module__ = right.__name__, __name__
    return run


def load(model: Path, variant: str) -> PartsRunner:
    """Load the module, and plant the fault that a variant names."""
    healthy = load_healthy(model, "default")
    if not variant:
        return healthy
    cause = next(each for each in FURTHER if each.name == variant)
    faulty = load_healthy(model, "default")
    graph = faulty._graph
    if not isinstance(graph, TorchGraph):
        raise TypeError(f"expected a TorchGraph, got {type(graph).__name__}")
    for name, node in graph._nodes.items():
        target: Any = node.target
        operation = str(target.__name__).partition(".")[0]
        if operation in cause.torch:
            node.target = _noted(name, target, _fault_of(variant, operation))
    graph._module.recompile()
    if not cause.fused:
        return faulty
    healthy.run = faulty.run  # type: ignore[method-assign]
    healthy.prefix = faulty.prefix  # type: ignore[method-assign]
    return healthy
