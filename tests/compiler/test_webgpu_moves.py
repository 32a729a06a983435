"""64-bit integers that are moved and not computed with keep all their bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax, te, tirx

from tapml_targets.driver import Driver
from tests.compiler.operators import from_relax, operator, run
from tests.compiler.webgpu_operators import compiled, text

Array = np.ndarray[Any, Any]
WIDE = np.random.default_rng(6).integers(-(2**63), 2**63 - 1, (5, 6), np.int64)


@pytest.mark.parametrize(
    ("move", "expected"),
    [
        (relax.op.permute_dims, WIDE.T),
        (lambda x: relax.op.reshape(x, (-1,)), WIDE.reshape(-1)),
        (lambda x: relax.op.strided_slice(x, [1], [2], [5]), WIDE[:, 2:5]),
        (lambda x: relax.op.flip(x, 1), WIDE[:, ::-1]),
        (lambda x: relax.op.tile(x, [1, 2]), np.tile(WIDE, (1, 2))),
        (lambda x: relax.op.nn.pad(x, [0, 0, 1, 1]), np.pad(WIDE, ((0, 0), (1, 1)))),
        (lambda x: relax.op.tril(x, 0), np.tril(WIDE)),
    ],
    ids=["permute", "reshape", "slice", "flip", "tile", "pad", "tril"],
)
def test_a_moved_element_keeps_all_bits(
    adapter: Driver, move: Callable[[Any], Any], expected: Array
) -> None:
    library = compiled(from_relax("moved", ("n", 6), move, dtype="int64"))
    *_, found = run(adapter, library, "moved", [WIDE, np.full(expected.shape, 7)])
    np.testing.assert_array_equal(found, expected)


def test_elements_of_two_tensors_are_concatenated(adapter: Driver) -> None:
    rows = tirx.Var("n", "int64")
    left, right = (te.placeholder((rows, 6), "int64", name=name) for name in ("left", "right"))
    both = te.compute(
        (rows, 12),
        lambda i, j: tirx.if_then_else(
            j < 6, left[i, tirx.min(j, 5)], right[i, tirx.max(j - 6, 0)]
        ),
        "both",
    )
    library = compiled(operator("both", te.create_prim_func([left, right, both])))
    *_, found = run(adapter, library, "both", [WIDE, ~WIDE, np.zeros((5, 12), np.int64)])
    np.testing.assert_array_equal(found, np.concatenate([WIDE, ~WIDE], axis=1))


@pytest.mark.parametrize("index", ["int32", "int64"])
def test_picked_rows_keep_all_bits(adapter: Driver, index: str) -> None:
    table = te.placeholder((5, 6), "int64", name="table")
    ids = te.placeholder((tirx.Var("n", "int64"),), index, name="ids")
    rows = te.compute((ids.shape[0], 6), lambda i, j: table[ids[i], j], "rows")
    library = compiled(operator("take", te.create_prim_func([table, ids, rows])))
    chosen = np.array([3, 0, 4, 3], index)
    *_, found = run(adapter, library, "take", [WIDE, chosen, np.zeros((4, 6), np.int64)])
    np.testing.assert_array_equal(found, WIDE[chosen])


def test_a_sum_in_a_function_that_moves_elements_has_all_bits(adapter: Driver) -> None:
    def mixed(x: Any) -> Any:
        return tirx.if_then_else(x < 3, x, x + tirx.const(1, "int64"))

    rows = tirx.Var("n", "int64")
    given = te.placeholder((rows, 6), "int64", name="given")
    made = te.compute((rows, 6), lambda i, j: mixed(given[i, j]), "made")
    library = compiled(operator("mixed", te.create_prim_func([given, made])))
    _, found = run(adapter, library, "mixed", [WIDE, np.zeros_like(WIDE)])
    np.testing.assert_array_equal(found, np.where(WIDE < 3, WIDE, WIDE + 1))


def test_a_moved_element_is_not_read_as_a_number() -> None:
    library = compiled(from_relax("moved", ("n", 6), relax.op.permute_dims, dtype="int64"))
    assert "fn move_" in text(library)
    assert "fn read_" not in text(library)
