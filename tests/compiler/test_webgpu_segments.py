"""A weight above the binding limit is bound a segment at a time, where that is right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import te, tirx

from tapml.compiler.preflight import check
from tapml.plan.graph_plan import Operator
from tapml_targets.driver import Driver
from tapml_targets.library import BufferArgument, Library, launches
from tapml_targets.limits import Limits
from tapml_targets.placement import placement_of
from tapml_targets.target import Target
from tests.compiler.operators import matmul_transposed, operator, run
from tests.compiler.webgpu_operators import compiled

# 12 rows of 48 floats: (32, 48) is 12, 12 and 8 rows.
LIMITS = Limits(max_binding_bytes=2400, offset_alignment=256)
SMALL = Target("webgpu", limits=LIMITS)


def picked(rows: int = 50, columns: int = 16, *, index: str = "int32") -> Operator:
    """Rows of an embedding: ``table[clip(ids)]``."""
    count = tirx.Var("n", "int64")
    table = te.placeholder((rows, columns), "float32", name="table")
    ids = te.placeholder((count,), index, name="ids")
    low, high = tirx.IntImm("int64", 0), tirx.IntImm("int64", rows - 1)

    def row(i: Any) -> Any:
        return te.min(te.max(low, ids[i].astype("int64")), high)

    taken = te.compute((count, columns), lambda i, j: table[row(i), j], "taken")
    return operator("picked", te.create_prim_func([table, ids, taken]))


def windows(library: Library, name: str) -> list[tuple[object, object]]:
    """Offset and size of what each launch is given of a tensor."""
    (program,) = library.operators.values()
    return [
        (argument.byte_offset, argument.nbytes)
        for launch in launches(program.statements)
        for argument in launch.arguments
        if isinstance(argument, BufferArgument) and argument.name == name
    ]


@pytest.mark.parametrize("rows", [1, 5, 33])
def test_a_product_is_made_some_columns_at_a_time(adapter: Driver, rows: int) -> None:
    of = matmul_transposed(rows=1 if rows == 1 else None)
    library = compiled(of, SMALL)
    assert windows(library, "p1") == [(0, 2304), (2304, 2304), (4608, 1536)]
    assert check(library, LIMITS, {"n": 5}) == ()
    rng = np.random.default_rng(rows)
    given, weight = rng.standard_normal((rows, 48), "f4"), rng.standard_normal((32, 48), "f4")
    *_, result = run(adapter, library, "matmul", [given, weight, np.full((rows, 32), 7, "f4")])
    np.testing.assert_allclose(result, given @ weight.T, atol=1e-4)


@pytest.mark.parametrize("index", ["int32", "int64"])
def test_rows_are_picked_from_the_segment_that_holds_them(adapter: Driver, index: str) -> None:
    """50 rows of 64 bytes as 28 and 22: the first, the last, the borders, and beyond both ends."""
    library = compiled(picked(index=index), SMALL)
    assert windows(library, "p0") == [(0, 1792), (1792, 1408)]
    table = np.random.default_rng(2).standard_normal((50, 16), np.float32)
    ids = np.array([0, 49, 27, 28, 5, -3, 70, 28], index)
    *_, result = run(adapter, library, "picked", [table, ids, np.full((8, 16), 7, "f4")])
    np.testing.assert_array_equal(result, table[np.clip(ids, 0, 49)])


def test_the_library_says_which_tensor_was_cut_and_why() -> None:
    assert placement_of(compiled(picked(), SMALL), "picked") == (
        "p0 in 2 segments of 28 rows: max_binding_bytes needs 3200, the device has 2400"
    )


def test_segments_of_one_length_share_a_kernel() -> None:
    library = compiled(picked(rows=56), SMALL)
    assert windows(library, "p0") == [(0, 1792), (1792, 1792)]
    assert len(library.kernels) == 1


def test_tensors_that_cannot_be_segmented_are_refused_with_the_limit() -> None:
    """A sum over the rows needs all of them at once."""
    table = te.placeholder((50, 16), "float32", name="table")
    k = te.reduce_axis((0, 50), name="k")
    total = te.compute((16,), lambda j: te.sum(table[k, j], axis=k), "total")
    library = compiled(operator("total", te.create_prim_func([table, total])), SMALL)
    (problem,) = check(library, LIMITS)
    assert "parameter 'p0'" in problem.where
    assert (problem.limit, problem.need) == ("max_binding_bytes", "3200")


def test_a_tensor_that_is_also_indexed_otherwise_is_not_segmented() -> None:
    """``x`` is read at the row and along the sum: a segment of rows has no part of it."""
    weight, x = te.placeholder((32, 48), "float32", "weight"), te.placeholder((48,), "float32", "x")
    k = te.reduce_axis((0, 48), name="k")
    made = te.compute((32,), lambda j: te.sum(weight[j, k] * x[k] * x[j], axis=k), "made")
    library = compiled(operator("made", te.create_prim_func([weight, x, made])), SMALL)
    (problem,) = check(library, LIMITS)
    assert (problem.limit, problem.need) == ("max_binding_bytes", "6144")


def test_a_vector_beside_the_weight_is_used_from_the_segment_on(adapter: Driver) -> None:
    weight = te.placeholder((32, 48), "float32", "weight")
    x, scale = te.placeholder((48,), "float32", "x"), te.placeholder((32,), "float32", "scale")
    k = te.reduce_axis((0, 48), name="k")
    made = te.compute((32,), lambda j: te.sum(weight[j, k] * x[k] * scale[j], axis=k), "made")
    library = compiled(operator("made", te.create_prim_func([weight, x, scale, made])), SMALL)
    assert check(library, LIMITS) == ()
    rng = np.random.default_rng(4)
    given = [rng.standard_normal(shape, np.float32) for shape in ((32, 48), (48,), (32,))]
    *_, result = run(adapter, library, "made", [*given, np.zeros(32, np.float32)])
    np.testing.assert_allclose(result, given[0] @ given[1] * given[2], atol=1e-4)


def test_an_output_with_fewer_rows_is_not_overrun(adapter: Driver) -> None:
    """50 rows as 28 and 22, of which the output has 20."""
    table = te.placeholder((50, 16), "float32", "table")
    made = te.compute((20, 16), lambda i, j: table[i, j] + 1.0, "made")
    library = compiled(operator("made", te.create_prim_func([table, made])), SMALL)
    assert check(library, LIMITS) == ()
    # A device may drop what is written behind an output; the kernel does not write it.
    assert all("segment_start <=" in module.code.decode() for module in library.modules)
    given = np.random.default_rng(6).standard_normal((50, 16), np.float32)
    *_, result = run(adapter, library, "made", [given, np.zeros((20, 16), np.float32)])
    np.testing.assert_array_equal(result, given[:20] + 1)


def test_a_row_that_is_read_conditionally_is_not_segmented() -> None:
    """What follows the table in a concatenation is in no segment of it."""
    count = tirx.Var("n", "int64")
    table = te.placeholder((50, 16), "float32", "table")
    more = te.placeholder((count, 16), "float32", "more")
    joined = te.compute(
        (count + 50, 16),
        lambda i, j: te.if_then_else(i >= 50, more[i - 50, j], table[i, j]),
        "joined",
    )
    library = compiled(operator("joined", te.create_prim_func([table, more, joined])), SMALL)
    (problem,) = check(library, LIMITS)
    assert (problem.limit, problem.need) == ("max_binding_bytes", "3200")


def test_a_row_above_the_limit_is_refused() -> None:
    limits = replace(LIMITS, max_binding_bytes=128)
    (problem, *_) = check(compiled(matmul_transposed(), Target("webgpu", limits=limits)), limits)
    assert problem.limit == "max_binding_bytes"
