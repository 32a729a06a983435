"""How many operators a graph becomes, whatever stands between them; it computes the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax, tirx

from tapml.compiler.reference import compile_reference
from tapml.importing.importer import import_relax
from tapml.importing.reshape_groups import axis_groups, regrouped
from tapml.rooting.interpreter import run_entry

op = relax.op
Build = Callable[..., Any]
Shapes = tuple[tuple[Any, ...], ...]


def built(shapes: Shapes, build: Build) -> Any:
    """A module that gives `build` tensors of the shapes; a text is a symbolic extent."""
    builder = relax.BlockBuilder()
    symbols: dict[str, Any] = {}
    for shape in shapes:
        for extent in shape:
            if isinstance(extent, str):
                symbols.setdefault(extent, tirx.Var(extent, "int64"))
    parameters = [
        relax.Var(f"p{i}", relax.TensorType([symbols.get(e, e) for e in shape], "float32"))
        for i, shape in enumerate(shapes)
    ]
    with builder.function("main", parameters):
        with builder.dataflow():
            output = builder.emit_output(build(*parameters, **symbols))
        builder.emit_func_output(output)
    return builder.get()


GRAPHS: dict[str, tuple[Shapes, Build, Callable[..., Any], int]] = {
    "an elementwise step on each side": (
        ((6,), (1, 2, 6, 1), (1, 2, 6, 4)),
        lambda a, b, c: op.add(op.multiply(op.reshape(op.negative(a), (1, 1, 6, 1)), b), c),
        lambda a, b, c: -a.reshape(1, 1, 6, 1) * b + c,
        1,
    ),
    "two reshapes one after the other": (
        ((2, 3, 4),),
        lambda a: op.exp(op.reshape(op.reshape(op.negative(a), (6, 4)), (2, 12))),
        lambda a: np.exp(-a.reshape(2, 12)),
        1,
    ),
    "a product and what is added to it": (
        ((1, 5), (5, 8), (1, 1, 8)),
        lambda a, b, c: op.add(c, op.reshape(op.matmul(a, b), (1, 1, 8))),
        lambda a, b, c: c + (a @ b).reshape(1, 1, 8),
        1,
    ),
    "a product, a scale and a mask along heads": (
        ((4, "rows", 5), (4, 5, 8), (1, 1, "rows", 8)),
        lambda a, b, c, rows: op.add(
            op.multiply(op.reshape(op.matmul(a, b), (1, 4, rows, 8)), relax.const(0.5, "float32")),
            c,
        ),
        lambda a, b, c: (a @ b)[None] * np.float32(0.5) + c,
        1,
    ),
    "two products of one operand, which stay apart": (
        ((1, 5), (5, 8), (5, 8)),
        lambda a, b, c: op.multiply(
            op.sigmoid(op.reshape(op.matmul(a, b), (1, 1, 8))),
            op.reshape(op.matmul(a, c), (1, 1, 8)),
        ),
        lambda a, b, c: ((a @ c) / (1 + np.exp(-(a @ b)))).reshape(1, 1, 8),
        3,
    ),
    "a product whose axis is split": (
        ((1, 6), (6, 6), (2, 3)),
        lambda a, b, c: op.add(op.reshape(op.matmul(a, b), (2, 3)), c),
        lambda a, b, c: (a @ b).reshape(2, 3) + c,
        1,
    ),
    "a norm of squares": (
        (("rows", 8), (8,)),
        lambda a, b, rows: op.multiply(
            op.multiply(
                a, op.rsqrt(op.mean(op.power(a, relax.const(2.0, "float32")), -1, keepdims=True))
            ),
            b,
        ),
        lambda a, b: a / np.sqrt((a * a).mean(-1, keepdims=True)) * b,
        1,
    ),
    "a transpose in front of a product": (
        ((2, "rows", 4), (8, 3)),
        lambda a, b, rows: op.matmul(op.reshape(op.permute_dims(a, (1, 0, 2)), (rows, 8)), b),
        lambda a, b: a.transpose(1, 0, 2).reshape(-1, 8) @ b,
        1,
    ),
    "two operands of a product that come of one function": (
        ((1, 5, 2, 4), (1, 5, 2, 4)),
        lambda a, b: op.matmul(
            op.reshape(op.permute_dims(a, (0, 2, 1, 3)), (2, 5, 4)),
            op.permute_dims(op.reshape(op.permute_dims(b, (0, 2, 1, 3)), (2, 5, 4)), (0, 2, 1)),
        ),
        lambda a, b: a[0].transpose(1, 0, 2) @ b[0].transpose(1, 2, 0),
        1,
    ),
    "a function that is told an extent": (
        (("rows", 4, 8),),
        lambda a, rows: op.sum(
            op.reshape(op.nn.relu(op.reshape(op.exp(a), (rows * 4, 8))), (rows, 4, 8)), 0
        ),
        lambda a: np.exp(a).sum(0),
        1,
    ),
    "an extent that only a broadcast tensor has": (
        ((1, 8), ("rows", 8)),
        lambda a, b, rows: op.add(
            op.sum(op.reshape(op.broadcast_to(a, (rows, 8)), (rows, 2, 4)), 0),
            op.sum(op.reshape(b, (rows, 2, 4)), 0),
        ),
        lambda a, b: (a[0] * len(b) + b.sum(0)).reshape(2, 4),
        4,
    ),
    "rows that a product would read again": (
        ((2, 3), (2, 4, 3), (2, 3, 5)),
        lambda a, b, c: op.matmul(op.add(op.reshape(op.exp(a), (2, 1, 3)), b), c),
        lambda a, b, c: (np.exp(a)[:, None] + b) @ c,
        2,
    ),
    "a softmax of what was scaled": (
        ((2, 4),),
        lambda a: op.nn.softmax(op.reshape(op.multiply(a, a), (2, 1, 4)), -1),
        lambda a: (np.exp(a * a) / np.exp(a * a).sum(-1, keepdims=True)).reshape(2, 1, 4),
        1,
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_reshape_between_operators_costs_no_launch(name: str) -> None:
    shapes, build, expected, launches = GRAPHS[name]
    plan = import_relax(built(shapes, build)).plan
    entry = plan.entries["main"]
    generator = np.random.default_rng(3)
    given = [
        generator.uniform(0.5, 2, [3 if isinstance(e, str) else e for e in shape]).astype("float32")
        for shape in shapes
    ]
    values = run_entry(entry, compile_reference(plan), dict(zip(entry.inputs, given, strict=True)))
    np.testing.assert_allclose(values[entry.outputs[0]], expected(*given), rtol=2e-5)
    assert len(list(entry.calls)) == launches, [call.operator for call in entry.calls]


def test_axes_of_a_reshape_go_together_where_they_hold_the_same_elements() -> None:
    assert axis_groups((1, 4, 5), (4, 5)) == [((0, 1), (0,)), ((2,), (1,))]
    assert axis_groups((6, 4), (2, 3, 4, 1)) == [((0,), (0, 1)), ((1,), (2, 3))]
    assert axis_groups((2, 3), (3, 2)) is None
    assert axis_groups((4, 3), (2, 6, 1)) == [((0, 1), (0, 1, 2))]
    assert axis_groups((4,), (5,)) is None


def test_an_operand_meets_the_reshaped_tensor_where_it_met_the_tensor() -> None:
    generator = np.random.default_rng(11)
    met = 0
    for _ in range(300):
        first = tuple(int(e) for e in generator.choice([1, 2, 3], generator.integers(1, 5)))
        second = _other_shape(first, generator)
        kept = first[int(generator.integers(0, len(first))) :]
        operand = tuple(int(generator.choice([1, extent])) for extent in kept)
        groups = axis_groups(first, second)
        assert groups is not None
        shape = regrouped(operand, first, second, groups)
        if shape is None:
            continue
        met += 1
        values = generator.standard_normal(operand)
        expected = np.broadcast_to(values, first).reshape(second)
        found = np.broadcast_to(values.reshape([int(e) for e in shape]), second)
        np.testing.assert_array_equal(found, expected)
    assert met > 100


def _other_shape(shape: tuple[int, ...], generator: np.random.Generator) -> tuple[int, ...]:
    """Neighbours joined and ones put in at random."""
    other: list[int] = []
    for extent in shape:
        if other and generator.random() < 0.4:
            other[-1] *= extent
        else:
            other += [1] * int(generator.random() < 0.3) + [extent]
    return tuple(other)
