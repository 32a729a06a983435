"""What a sub-graph from someone else's suite may make torch do: compute, within bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tapml.oracles.torch_oracle_run import MAX_RESULT_BYTES, RULES, most_elements, run_subgraph
from tapml.plan.torch_subgraph import (
    ELEMENTWISE,
    GROWING,
    KEEPING,
    Argument,
    DataType,
    Extent,
    Reference,
    Text,
    TorchInput,
    TorchNode,
    TorchSubgraph,
)
from tapml_targets.errors import InputError
from tapml_targets.library import Parameter

X = np.array([[1.5, -2.0, 0.25], [3.0, 0.5, -1.0]], np.float32)


def graph_of(*nodes: TorchNode) -> TorchSubgraph:
    given = TorchInput("i0", "input_0", ("rows", 3), ("rows", 3))
    return TorchSubgraph((given,), nodes, (Reference(nodes[-1].name),))


def node(operation: str, *arguments: Argument, **keywords: Argument) -> TorchNode:
    return TorchNode("n0", operation, arguments, tuple(keywords.items()))


def run(
    subgraph: TorchSubgraph, x: np.ndarray = X, like: np.ndarray = X, dtype: str = "float32"
) -> Any:
    parameters = (
        Parameter("input_0", ("rows", 3), dtype, "input"),
        Parameter("output_0", like.shape, "float32", "output"),
    )
    (result,) = run_subgraph(subgraph, parameters, [x], [like], {})
    return result


def test_everything_is_computed_in_float64() -> None:
    third = run(graph_of(node("aten.div.Tensor", Reference("i0"), 3.0)))
    np.testing.assert_array_equal(third, X.astype(np.float64) / 3.0)
    assert third.dtype == np.float64


def test_bfloat16_is_read_from_its_bits() -> None:
    bits = (X.view(np.uint32) >> 16).astype(np.uint16)
    same = run(graph_of(node("aten.neg.default", Reference("i0"))), bits, dtype="bfloat16")
    np.testing.assert_array_equal(same, -X)


def test_a_dtype_that_rounds_becomes_float64() -> None:
    cast = node("aten._to_copy.default", Reference("i0"), dtype=DataType("float16"))
    x = X + np.float32(1e-6)
    np.testing.assert_array_equal(run(graph_of(cast), x), x.astype(np.float64))


def test_a_made_tensor_keeps_the_value_of_its_own_dtype() -> None:
    made = TorchNode(
        "n0",
        "aten.full.default",
        ((Extent("rows"), Extent(3)), 0.1),
        (("dtype", DataType("float32")),),
    )
    result = run(graph_of(made))
    assert result.shape == (2, 3)
    assert abs(float(result[0, 0]) - 0.1) < 1e-8


def test_a_view_of_what_is_permuted_inside_the_operator_is_its_elements_in_order() -> None:
    """Where fusion drew a permutation in, what the model viewed is not in order any more."""
    turned = TorchNode("n0", "aten.permute.default", (Reference("i0"), (Extent(1), Extent(0))))
    viewed = TorchNode("n1", "aten.view.default", (Reference("n0"), (Extent(6),)))
    like = np.zeros(6, np.float32)
    result = run(graph_of(turned, viewed), like=like)
    np.testing.assert_array_equal(result, X.T.reshape(6))


def test_inputs_are_not_written_to() -> None:
    x = X.copy()
    x.flags.writeable = False
    run(graph_of(node("aten.relu.default", Reference("i0"))), x)
    np.testing.assert_array_equal(x, X)


def test_a_giant_result_is_refused_before_it_is_made() -> None:
    giant = node("aten.full.default", (Extent(1 << 20), Extent(1 << 20)), 0.0)
    with pytest.raises(InputError, match=f"bytes, at most {MAX_RESULT_BYTES} are allowed"):
        run(graph_of(giant))
    wide = node("aten.repeat.default", Reference("i0"), (Extent(1 << 30), Extent(1)))
    with pytest.raises(InputError, match="are allowed"):
        run(graph_of(wide))


@pytest.mark.parametrize(
    "bad",
    [
        node("aten.from_file.default", Text("/etc/hostname")),
        node("aten.relu_.default", Reference("i0")),
        node("aten.relu.out", Reference("i0"), out=Reference("i0")),
        node("aten.relu.nothing", Reference("i0")),
        node("aten.relu.overloads", Reference("i0")),
        node("aten.relu._schema", Reference("i0")),
        node("aten.relu.default", Text("tanh")),
        node("aten.relu.default"),
        node("aten.relu.default", Reference("i0", 0), 4.0),
        node("aten.index_select.default", Reference("i0"), Extent(9), Reference("i0")),
        node("aten.mm.default", Reference("i0"), Reference("i0")),
        node("aten._to_copy.default", Reference("i0"), dtype=DataType("__class__")),
        node("aten.repeat.default", Reference("i0"), (Extent("columns"), Extent(1))),
        node("aten.select.int", Reference("i0"), Extent(0), Extent(1 << 40)),
    ],
    ids=lambda bad: f"{bad.operation}-{len(bad.arguments)}",
)
def test_what_torch_or_the_list_refuses_is_one_clear_error(bad: TorchNode) -> None:
    with pytest.raises(InputError):
        run(graph_of(bad))


def test_keywords_in_another_order_do_not_hide_a_giant() -> None:
    tall = TorchNode("n0", "aten.repeat.default", (Reference("i0"), (Extent(1 << 14), Extent(1))))
    wide = TorchNode("n1", "aten.permute.default", (Reference("n0"), (Extent(1), Extent(0))))
    outer = TorchNode(
        "n2", "aten.mm.default", (), (("mat2", Reference("n1")), ("self", Reference("n0")))
    )
    with pytest.raises(InputError, match=r"aten\.mm\.default of a torch sub-graph gives up to"):
        run(graph_of(tall, wide, outer))


def test_tensors_that_do_not_fit_are_refused() -> None:
    negated = graph_of(node("aten.neg.default", Reference("i0")))
    with pytest.raises(InputError, match="expected shape"):
        run(negated, np.zeros((2, 4), np.float32))
    with pytest.raises(InputError, match="gives 6 elements where the operator writes 2"):
        run(negated, like=np.zeros(2, np.float32))


def test_every_listed_operation_has_a_bound() -> None:
    assert set(RULES) == set(GROWING)
    assert not (ELEMENTWISE & KEEPING or ELEMENTWISE & GROWING or KEEPING & GROWING)


def x(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float64)


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("mm", (x(3, 4), x(4, 5))),
        ("bmm", (x(2, 3, 4), x(2, 4, 5))),
        ("matmul", (x(7, 1, 3, 4), x(2, 4, 5))),
        ("matmul", (x(4), x(4))),
        ("addmm", (x(5), x(3, 4), x(4, 5))),
        ("baddbmm", (x(2, 3, 5), x(2, 3, 4), x(2, 4, 5))),
        ("linear", (x(2, 3, 4), x(5, 4), x(5))),
        ("outer", (x(3), x(4))),
        ("scaled_dot_product_attention", (x(1, 2, 3, 4), x(1, 2, 5, 4), x(1, 2, 5, 6))),
        (
            "convolution",
            (x(1, 3, 9, 8), x(6, 3, 3, 3), None, [2, 1], [1, 1], [1, 2], False, [0, 0], 1),
        ),
        (
            "convolution",
            (x(1, 4, 5, 5), x(4, 3, 3, 3), None, [2, 2], [0, 1], [1, 1], True, [1, 0], 2),
        ),
        ("expand", (x(3, 1), [2, -1, 5])),
        ("repeat", (x(3, 2), [2, 2, 3])),
        ("constant_pad_nd", (x(3, 2), [1, 2, 0, 4])),
        ("embedding", (x(9, 4), torch.zeros(3, 2, dtype=torch.int64))),
        ("gather", (x(3, 4), 1, torch.zeros(3, 6, dtype=torch.int64))),
        ("index", (x(3, 4, 5), [None, torch.zeros(7, dtype=torch.int64)])),
        ("index_select", (x(3, 4), -1, torch.zeros(9, dtype=torch.int64))),
        ("upsample_nearest2d", (x(1, 2, 3, 3), [7, 8])),
        ("arange", (3, 10, 2)),
        ("linspace", (0.0, 1.0, 11)),
        ("eye", (4,)),
        ("full", ([3, 4], 0.5)),
        ("cat", ([x(2, 3), x(4, 3)],)),
        ("add", (x(3, 1), x(1, 4))),
        ("avg_pool2d", (x(1, 2, 4, 4), [2, 2], [1, 1], [1, 1])),
        ("topk", (x(3, 9), 4)),
    ],
    ids=str,
)
def test_no_operation_gives_more_than_its_bound(operation: str, arguments: tuple[Any, ...]) -> None:
    packet = getattr(torch.ops.aten, operation)
    results = packet(*arguments)
    largest = max(
        each.numel() for each in (results if isinstance(results, list | tuple) else [results])
    )
    bound = most_elements(operation, arguments)
    assert largest <= bound
    assert bound <= 60 * largest + 60, "a bound that loose refuses what is harmless"
