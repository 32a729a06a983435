"""The cases: operators of every class on random numbers, none with a shape of the shipped model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import relax

from scripts.calibration.damage import Array, Damage, lose, mask, shift, swap, transpose

op = relax.op
Draw = Callable[[np.random.Generator, tuple[int, ...], int], Array]


@dataclass(frozen=True)
class Trial:
    """One operator.

    Attributes
    ----------
    name
        Unique within a dtype.
    shapes
        Of its inputs, which all have the dtype under trial.
    build
        The Relax expression, given the inputs.
    draw
        Makes an input: generator, shape, position.
    wrong
        Ways to be wrong.
    units, half_units
        Units in the last place that OpenCL allows the function in single and half precision
        (OpenCL C 3.0, section 7.4), where the operator is that function alone. A kernel further off
        than that is not right, even if nothing is wrong with it: LLVM's code for tanh is a
        quotient of exponentials, which loses its digits near zero.
    host_only
        TVM's code for GPUs is wrong: its scan updates shared memory without a barrier between the
        neighbours' reads and the write, and differs from run to run on both OpenCL drivers.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    build: Callable[..., Any]
    draw: Draw
    wrong: Mapping[str, Damage] = field(default_factory=dict)
    units: float = 0.0
    half_units: float = 0.0
    host_only: bool = False


def normal(generator: np.random.Generator, shape: tuple[int, ...], position: int) -> Array:
    """Standard normal."""
    return generator.standard_normal(shape)


def positive(generator: np.random.Generator, shape: tuple[int, ...], position: int) -> Array:
    """Half normal: sums do not cancel."""
    return np.abs(generator.standard_normal(shape)) + 1e-3


def activations(generator: np.random.Generator, shape: tuple[int, ...], position: int) -> Array:
    """Wide, with a few channels a hundred times larger, as a language model's are."""
    values = generator.standard_normal(shape) * (3.0 if position == 0 else 1.0)
    if position == 0:
        values[..., :: max(1, shape[-1] // 3)] *= 100.0
    return values


def small_weights(generator: np.random.Generator, shape: tuple[int, ...], position: int) -> Array:
    """Activations times weights as they are initialised."""
    scale = 1.0 if position == 0 else shape[0] ** -0.5
    return generator.standard_normal(shape) * scale


def positions(generator: np.random.Generator, shape: tuple[int, ...], position: int) -> Array:
    """Token positions, then inverse frequencies of rotary embedding."""
    if position == 0:
        return np.arange(shape[0], dtype=np.float64).reshape(shape)
    return 10000.0 ** (-np.arange(shape[-1]) / shape[-1]).reshape(shape)


def attention(q: Any, k: Any) -> Any:
    """Softmax of scaled scores, one head."""
    return op.matmul(q, op.permute_dims(k)) * relax.const(0.125, q.ty.dtype)


def trials(dtype: str) -> Iterator[Trial]:
    """All cases in a dtype."""
    for length in (48, 320, 1536, 6144) if dtype == "float32" else (48, 320, 1536):
        yield from _products(length, dtype)
        yield from _normalisations(length)
        yield from _rows(length)
    yield from _elementwise()
    yield from _transcendental()
    yield from _moved()


def _products(n: int, dtype: str) -> Iterator[Trial]:
    wrong = {"shift": shift(0), "lost last term": lose(0), "lost first term": lose(0, at=0)}
    matmul: tuple[tuple[int, ...], ...] = ((24, n), (n, 40))
    yield Trial(f"matmul {n}", matmul, op.matmul, normal, wrong)
    yield Trial(f"gemv {n}", ((1, n), (n, 200)), op.matmul, small_weights, wrong)
    yield Trial(f"matmul positive {n}", matmul, op.matmul, positive, wrong)
    yield Trial(f"matmul outliers {n}", matmul, op.matmul, activations, wrong)
    if n <= 320:
        scores: tuple[tuple[int, ...], ...] = ((24, n), (36, n))
        yield Trial(f"scaled scores {n}", scores, attention, normal, wrong)
    if dtype != "float32":
        yield Trial(
            f"matmul in float32 {n}",
            matmul,
            lambda a, b: op.astype(op.matmul(a, b, out_dtype="float32"), dtype),
            normal,
            wrong,
        )


def _normalisations(n: int) -> Iterator[Trial]:
    for draw in (normal, activations):
        yield Trial(
            f"rms_norm {draw.__name__} {n}",
            ((20, n), (n,)),
            lambda x, w: op.nn.rms_norm(x, w, axes=[-1], epsilon=1e-5),
            draw,
            {"shift": shift(0), "weight shift": shift(1), "lost term": lose(0)},
        )
    yield Trial(
        f"layer_norm {n}",
        ((20, n), (n,), (n,)),
        lambda x, w, b: op.nn.layer_norm(x, w, b, axes=[-1]),
        normal,
        {"shift": shift(0), "swap": swap(1, 2)},
    )
    yield Trial(
        f"softmax {n}",
        ((36, n),),
        op.nn.softmax,
        activations if n < 400 else normal,
        {"shift": shift(0), "lost last term": mask(0)},
    )
    yield Trial(
        f"log_softmax {n}", ((36, n),), op.nn.log_softmax, normal, {"shift": shift(0)}
    )  # fmt: skip


def _rows(n: int) -> Iterator[Trial]:
    lost = {"lost last term": lose(0)}
    yield Trial(f"sum {n}", ((12, n),), lambda x: op.sum(x, axis=[1]), normal, lost)
    yield Trial(f"mean positive {n}", ((12, n),), lambda x: op.mean(x, axis=[1]), positive, lost)
    yield Trial(
        f"cumsum {n}",
        ((12, n),),
        lambda x: op.cumsum(x, axis=1),
        normal,
        {"shift": shift(0), "lost first term": lose(0, at=0)},
        host_only=True,
    )


def _elementwise() -> Iterator[Trial]:
    three: tuple[tuple[int, ...], ...] = ((300, 70),) * 3
    two, one = three[:2], three[:1]
    yield Trial("add", two, op.add, normal, {"shift": shift(0)})
    yield Trial(
        "residual",
        three,
        lambda a, b, c: op.add(op.multiply(op.subtract(a, b), c), a),
        normal,
        {"shift": shift(2), "swap": swap(0, 1)},
    )
    yield Trial(
        "rotated",
        ((300, 70),) * 4,
        lambda a, b, c, s: op.subtract(op.multiply(a, c), op.multiply(b, s)),
        normal,
        {"shift": shift(2), "swap": swap(0, 1)},
    )
    yield Trial("divide", two, op.divide, positive, {"swap": swap(0, 1)}, 2.5, 1.0)
    yield Trial("sqrt", one, op.sqrt, positive, {"shift": shift(0)}, 3.0, 1.0)
    yield Trial("rsqrt", one, op.rsqrt, positive, {"shift": shift(0)}, 2.0, 1.0)


def _transcendental() -> Iterator[Trial]:
    one: tuple[tuple[int, ...], ...] = ((140, 90),)
    moved = {"shift": shift(0)}
    for name, build, draw, units, half_units in (
        ("exp", op.exp, normal, 3.0, 2.0),
        ("exp wide", op.exp, activations, 3.0, 2.0),
        ("log", op.log, positive, 3.0, 2.0),
        ("tanh", op.tanh, normal, 5.0, 2.0),
        ("sin", op.sin, normal, 4.0, 2.0),
        ("cos", op.cos, normal, 4.0, 2.0),
        ("erf", op.erf, normal, 16.0, 4.0),
        ("sigmoid", op.sigmoid, normal, 0.0, 0.0),
    ):
        yield Trial(name, one, build, draw, moved, units, half_units)
    yield Trial(
        "power", one * 2, op.power, positive, {"shift": shift(0), "swap": swap(0, 1)}, 16.0, 4.0
    )
    for name, build in (("gelu", op.nn.gelu), ("gelu tanh", op.nn.gelu_tanh), ("silu", op.nn.silu)):
        yield Trial(name, one, build, normal, moved)
    for draw in (normal, activations):
        yield Trial(
            f"silu gate {draw.__name__}",
            one * 2,
            lambda g, u: op.multiply(op.nn.silu(g), u),
            draw,
            {"shift": shift(0), "swap": swap(0, 1)},
        )
    yield Trial(
        "rotary angles",
        ((600, 1), (1, 24)),
        lambda p, f: op.concat([op.cos(op.multiply(p, f)), op.sin(op.multiply(p, f))], axis=1),
        positions,
        {"shift": shift(1), "position shift": shift(0, 0)},
    )


def _moved() -> Iterator[Trial]:
    one: tuple[tuple[int, ...], ...] = ((96, 90),)
    moved = {"shift": shift(0)}
    yield Trial("transpose", one, op.permute_dims, activations, moved)
    yield Trial("relu", one, op.nn.relu, normal, moved)
    yield Trial("negative", one, op.negative, normal, moved)
    yield Trial("maximum", one * 2, op.maximum, normal, {"shift": shift(1)})
    yield Trial("largest", one, lambda x: op.max(x, axis=[1]), normal, {"lost": lose(0)})
    yield Trial("concatenate", one * 2, lambda a, b: op.concat([a, b], axis=1), normal, moved)
    yield Trial(
        "square matmul",
        ((96, 96), (96, 96)),
        op.matmul,
        normal,
        {"transposed": transpose(1), "swap": swap(0, 1)},
    )
