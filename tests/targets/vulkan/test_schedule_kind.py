"""Products in dlight's schedules for WebGPU, and for Vulkan itself, keep to their outputs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tvm import te

from tapml.plan.graph_plan import Operator
from tapml_targets.driver import Driver
from tapml_targets.evaluator import LoadedLibrary
from tapml_targets.target import Target
from tapml_targets.vulkan.codegen import generate
from tests.compiler.operators import operator, source
from tests.targets.libraries import Tensors

ROWS, COLUMNS, BEHIND = 33, 64, 16


@cache
def product_with_a_vector() -> Operator:
    a = te.placeholder((ROWS, COLUMNS), "float32", name="a")
    x = te.placeholder((COLUMNS,), "float32", name="x")
    k = te.reduce_axis((0, COLUMNS), name="k")
    y = te.compute((ROWS,), lambda i: te.sum(a[i, k] * x[k], axis=k), name="y")
    return operator("product", te.create_prim_func([a, x, y]))


@pytest.mark.parametrize("kind", ["webgpu", "vulkan"])
def test_a_product_with_fewer_rows_than_its_blocks_writes_no_row_too_many(
    driver: Driver, kind: str
) -> None:
    """Scheduled for Vulkan a block has eight rows, and TVM alone would write seven behind them."""
    target = Target("vulkan", (("schedule_kind", kind),))
    library = generate(source(product_with_a_vector()), target)
    rng = np.random.default_rng(0)
    a, x = rng.standard_normal((ROWS, COLUMNS), "f4"), rng.standard_normal(COLUMNS, "f4")
    tensors = Tensors(driver)
    whole = tensors.put(np.full(ROWS + BEHIND, 7, np.float32))
    output = replace(whole, shape=(ROWS,))
    with LoadedLibrary(driver, library) as loaded:
        # With guard bands the window goes on behind the output; else the device confines it.
        uses = [tensors.put(a), tensors.put(x), output]
        loaded.call("product", uses, workspace_poison=b"\xcd")
    found = tensors.get(whole)
    np.testing.assert_allclose(found[:ROWS], a @ x, atol=1e-4)
    assert (found[ROWS:] == 7).all()
