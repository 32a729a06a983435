"""Static extents change together or not at all, and the function stays one that can be compiled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tvm import relax

from tapml.compiler.reference import compile_reference
from tapml.reduce.extent_classes import extent_classes, with_extent
from tests.compiler.operators import matmul_transposed, softmax
from tests.oracles.operators import make_operator


def test_the_extents_of_a_product_are_three_classes_of_which_one_is_dynamic() -> None:
    found = {each.axes: each.extent for each in extent_classes(matmul_transposed())}
    assert found == {((0, 1), (1, 1)): 48, ((1, 0), (2, 1)): 32}


def test_equal_extents_that_mean_different_things_are_apart() -> None:
    square = make_operator(
        "square", [((60, 60), "float32"), ((60, 60), "float32")], relax.op.matmul
    )
    axes = {each.axes for each in extent_classes(square)}
    assert axes == {((0, 0), (2, 0)), ((0, 1), (1, 0)), ((1, 1), (2, 1))}


@pytest.mark.parametrize("extent", [1, 3, 99])
def test_a_smaller_operator_computes_what_its_name_says(extent: int) -> None:
    operator = softmax()
    (columns,) = extent_classes(operator)
    smaller = with_extent(operator, columns, extent)
    assert [p.shape for p in smaller.parameters] == [("n", extent), ("n", extent)]
    assert smaller.hash != operator.hash
    x = np.random.default_rng(0).standard_normal((4, extent)).astype(np.float32)
    result = np.zeros_like(x)
    compile_reference([smaller])["softmax"](x, result)
    powers = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(result, powers / powers.sum(1, keepdims=True), rtol=1e-5)


def test_an_extent_in_an_index_that_is_computed_stays() -> None:
    reshaped = make_operator(
        "reshape", [((4, 12), "float32")], lambda x: relax.op.reshape(x, (48,))
    )
    assert extent_classes(reshaped) == ()
    halves = make_operator(
        "slice",
        [((4, 12), "float32")],
        lambda x: relax.op.strided_slice(x, axes=[1], begin=[2], end=[8]),
    )
    assert [each.axes for each in extent_classes(halves)] == [((0, 0), (1, 0))]


def test_an_operator_with_another_form_for_other_platforms_keeps_its_extents() -> None:
    operator = softmax()
    assert extent_classes(replace(operator, variants={"gpu": operator.function})) == ()
