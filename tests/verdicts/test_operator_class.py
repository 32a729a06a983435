"""Classes of operators, read from what their functions do and not from their names."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tapml.importing.cache import PlanCache
from tapml.importing.importer import import_model, import_relax
from tapml.models.huggingface import load_model
from tapml.plan.graph_plan import GraphPlan, Operator
from tapml.verdicts.operator_class import (
    OperatorClass,
    checked_class,
    subtracts,
    terms_of,
    traits_of,
)
from tapml_targets.errors import InputError
from tests.oracles.operators import make_operator

op = relax.op
F32 = "float32"


def one(
    build: Callable[..., Any], count: int = 1, dtype: str = F32, shape: tuple[int, ...] = (6, 90)
) -> Operator:
    # The name is the same for all of them: it must not matter.
    return make_operator("operator", [(shape, dtype)] * count, build)


@pytest.mark.parametrize(
    ("build", "count", "expected"),
    [
        (op.permute_dims, 1, "exact"),
        (op.nn.relu, 1, "exact"),
        (op.maximum, 2, "exact"),
        (lambda x: op.max(x, axis=[1]), 1, "exact"),
        (lambda x: op.clip(x, 0.0, 1.0), 1, "exact"),
        (op.add, 2, "elementwise"),
        (op.divide, 2, "elementwise"),
        (op.sqrt, 1, "elementwise"),
        (lambda x: op.multiply(x, relax.const(0.1, F32)), 1, "elementwise"),
        (op.exp, 1, "transcendental"),
        (op.nn.gelu_tanh, 1, "transcendental"),
        (op.power, 2, "transcendental"),
        (lambda g, u: op.multiply(op.nn.silu(g), u), 2, "transcendental"),
        (lambda x: op.sum(x, axis=[1]), 1, "reduction"),
        (lambda x: op.sum(op.multiply(x, x), axis=[1]), 1, "reduction"),
        (lambda x: op.mean(x, axis=[1]), 1, "reduction"),
        (op.nn.softmax, 1, "softmax"),
        (lambda x: op.greater(x, relax.const(0.5, F32)), 1, "discrete"),
        (lambda x: op.argmax(x, axis=1), 1, "discrete"),
    ],
)
def test_what_is_done_decides(
    build: Callable[..., Any], count: int, expected: OperatorClass
) -> None:
    (output,) = traits_of(one(build, count))
    assert output.operator_class == expected


def test_sums_of_products_and_norms_are_told_from_sums() -> None:
    product = make_operator("operator", [((6, 90), F32), ((90, 5), F32)], op.matmul)
    assert traits_of(product)[0].operator_class == "product"
    norm = make_operator(
        "operator",
        [((6, 90), F32), ((90,), F32)],
        lambda x, w: op.nn.rms_norm(x, w, axes=[-1]),
    )
    assert traits_of(norm)[0].operator_class == "normalisation"


def test_a_scan_is_told_by_its_function_for_gpus() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((12, 48), F32))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(op.cumsum(x, axis=1)))
        builder.emit_func_output(result)
    plan = import_relax(builder.get()).plan
    (scan,) = (o for o in plan.operators.values() if o.variants)
    assert traits_of(scan)[0].operator_class == "scan"
    # And by the function itself: each element is added to its neighbour.
    assert traits_of(replace(scan, variants={}))[0].operator_class == "scan"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_is_rounded_once_at_the_end_is_told(dtype: str) -> None:
    def wide(a: Any, b: Any) -> Any:
        return op.astype(op.matmul(a, op.permute_dims(b), out_dtype=F32), dtype)

    builder = relax.BlockBuilder()
    variables = [relax.Var(n, relax.TensorType((6, 90), dtype)) for n in "ab"]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(wide(*variables)))
        builder.emit_func_output(result)
    plan = import_relax(builder.get()).plan
    products = [o for o in plan.operators.values() if "matmul" in o.name]
    assert [traits_of(o)[0].operator_class for o in products] == ["rounded"]
    assert traits_of(products[0])[0].arithmetic == F32
    (narrow,) = traits_of(one(lambda a: op.sum(a, axis=[1]), dtype=dtype))
    assert (narrow.operator_class, narrow.arithmetic) == ("reduction", dtype)


def test_terms_are_those_of_the_sum_and_not_of_the_shape() -> None:
    operator = one(lambda x: op.sum(x, axis=[0]), shape=(6, 9000))
    inputs = [np.zeros((6, 9000), np.float32)]
    assert terms_of(traits_of(operator), operator, inputs, {}) == 6
    operator = one(op.add, 2, shape=(6, 9000))
    assert terms_of(traits_of(operator), operator, inputs * 2, {}) == 1


def test_what_calls_out_is_not_classified() -> None:
    operator = one(op.exp)
    document = json.loads(operator.function)
    for node in document["nodes"]:
        if node["type"] == "ir.Op":
            node["data"] = "tirx.call_extern"
    unknown = replace(operator, function=json.dumps(document))
    assert traits_of(unknown)[0].operator_class == "unclassified"
    for text in ("", "{}", "[]", '{"nodes": [], "root_index": 0}'):
        assert traits_of(replace(operator, function=text))[0].operator_class == "unclassified"


def test_differences_and_quotients_are_seen() -> None:
    assert subtracts(one(op.subtract, 2))
    assert subtracts(one(op.divide, 2))
    assert not subtracts(one(op.add, 2))


@pytest.mark.parametrize(
    "data", [None, "product", ["product"], ["produkt", ""], ["product", "int8"], ["product", 3]]
)
def test_a_class_from_a_file_is_checked(data: object) -> None:
    assert checked_class(["product", "float16"]) == ("product", "float16")
    with pytest.raises(InputError):
        checked_class(data)


@pytest.fixture(scope="module")
def plan() -> GraphPlan:
    return import_model(load_model("pydoc-llama"), cache=PlanCache()).plan


def test_every_operator_of_the_shipped_model_has_a_class(plan: GraphPlan) -> None:
    classes = {name: traits_of(operator)[0] for name, operator in plan.operators.items()}
    assert "unclassified" not in {output.operator_class for output in classes.values()}
    for beginning, expected in {
        "take": "exact",
        "transpose": "exact",
        "broadcast": "exact",
        "matmul": "product",
        "fused_matmul": "product",
        "softmax": "softmax",
        "fused_rms_norm": "normalisation",
        "fused_silu": "transcendental",
        "cos": "transcendental",
        "fused_rotary": "elementwise",
    }.items():
        found = {c.operator_class for n, c in classes.items() if n.startswith(beginning)}
        assert found == {expected}, beginning


def test_the_terms_of_a_dynamic_length_follow_the_test(plan: GraphPlan) -> None:
    operator = plan.operators["fused_matmul_transposed_add"]
    inputs = [np.zeros(shape, np.float32) for shape in ((7, 344), (128, 344), (7, 128))]
    assert terms_of(traits_of(operator), operator, inputs, {}) == 344


@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_a_number_rounded_on_the_way_bounds_the_precision(narrow: str) -> None:
    of = one(lambda x: op.multiply(op.astype(op.astype(x, narrow), F32), relax.const(2.0, F32)))
    (traits,) = traits_of(of)
    assert (traits.operator_class, traits.arithmetic) == ("elementwise", narrow)
    (chosen,) = traits_of(one(lambda x: op.astype(op.nn.relu(op.astype(x, narrow)), F32)))
    assert chosen.arithmetic == narrow
    (rounded,) = traits_of(one(lambda x: op.astype(op.exp(x), narrow)))
    assert rounded.arithmetic == F32
