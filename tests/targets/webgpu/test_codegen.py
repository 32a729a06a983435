"""Operators as WGSL compute on every WebGPU device what they are made of."""

from __future__ import annotations

import numpy as np
from tvm import te, tirx

from tapml_targets.driver import Driver
from tapml_targets.target import Target
from tapml_targets.webgpu.codegen import generate
from tests.compiler.operators import operator, run, source


def test_what_is_no_number_differs_from_every_number(driver: Driver) -> None:
    """wgpu's compiler makes an ordered comparison of `!=`."""
    given = np.array([np.nan, 1, np.inf, -np.inf, 0, np.nan], np.float32)
    tensor = te.placeholder(given.shape, "float32", name="given")
    two, three = (tirx.const(each, "float32") for each in (2, 3))
    one = tirx.const(1, "float32")
    made = te.compute(
        given.shape, lambda i: tirx.Select(tirx.NE(tensor[i], one), two, three), "made"
    )
    of = operator("differ", te.create_prim_func([tensor, made]))
    library = generate(source(of), Target("webgpu", limits=driver.description.limits))
    _, found = run(driver, library, of.name, [given, np.zeros_like(given)])
    np.testing.assert_array_equal(found, np.where(given != 1, 2, 3))
