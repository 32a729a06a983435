"""The oracle on real operators: right kernels are near, wrong ones far, a cache changes nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tapml.compiler.reference import compile_reference
from tapml.compiler.reference_module import ReferenceModule
from tapml.compiler.twin import compile_twins
from tapml.oracles.oracle import Oracle
from tapml.oracles.twin_runs import Case, Perturbations, perturbed_outputs, run_twin
from tapml.plan.graph_plan import Operator
from tapml.verdicts.expectation import Expectation, float_errors
from tapml.verdicts.judge import judge
from tapml.verdicts.policy import Policy
from tapml_targets.errors import InputError, SetupError
from tests.oracles.cases import MemoryCase, make_case
from tests.oracles.operators import make_operator

op = relax.op


def attention(q: Any, k: Any, v: Any) -> Any:
    weights = op.nn.softmax(op.matmul(q, op.permute_dims(k)))
    return op.matmul(weights, v)


@pytest.fixture(scope="module")
def operators() -> dict[str, Operator]:
    f32 = "float32"
    made = [
        make_operator("matmul", [((6, 90), f32), ((90, 50), f32)], op.matmul),
        make_operator(
            "norm",
            [((6, 90), f32), ((90,), f32)],
            lambda x, w: op.nn.rms_norm(x, w, axes=[-1]),
        ),
        make_operator("softmax", [((6, 90), f32)], op.nn.softmax),
        make_operator("copy", [((6, 90), f32)], op.permute_dims),
        make_operator("take", [((40, 8), f32), ((5,), "int32")], lambda w, i: op.take(w, i, 0)),
        make_operator("count", [((7,), "int32"), ((7,), "int32")], op.add),
        make_operator("argmax", [((6, 90), f32)], lambda x: op.argmax(x, axis=1), ("index",)),
        make_operator(
            "round",
            [((6, 90), f32)],
            lambda x: op.astype(op.round(op.multiply(x, relax.const(3.0, f32))), "int8"),
            ("code",),
        ),
        make_operator(
            "positive",
            [((6, 90), f32)],
            lambda x: op.greater(op.multiply(x, relax.const(3.0, f32)), relax.const(1.5, f32)),
            ("predicate",),
        ),
        make_operator(
            "compare",
            [((6, 90), f32)],
            lambda x: op.greater(x, relax.const(0.5, f32)),
            ("predicate",),
        ),
        make_operator("half", [((6, 90), "float16"), ((90, 50), "float16")], op.matmul),
    ]
    return {operator.name: operator for operator in made}


@pytest.fixture(scope="module")
def reference(operators: dict[str, Operator]) -> ReferenceModule:
    return compile_reference(operators.values())


@pytest.fixture(scope="module")
def twins(operators: dict[str, Operator]) -> ReferenceModule:
    return compile_twins(operators.values())


@pytest.fixture
def oracle(operators: dict[str, Operator], twins: ReferenceModule) -> Iterable[Oracle]:
    with Oracle(operators, lambda _: twins, Policy()) as made:
        yield made


def draw(operator: Operator, seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    arrays = []
    for parameter in operator.read:
        shape = [int(extent) for extent in parameter.shape if isinstance(extent, int)]
        if parameter.dtype == "int32":
            arrays.append(generator.integers(0, 8, shape).astype(np.int32))
        else:
            arrays.append(generator.standard_normal(shape).astype(parameter.dtype))
    return arrays


@pytest.mark.parametrize("name", ["matmul", "norm", "softmax", "copy", "take", "half"])
def test_a_right_kernel_passes_and_a_shifted_one_fails_by_far(
    name: str, operators: dict[str, Operator], reference: ReferenceModule, oracle: Oracle
) -> None:
    case = make_case(operators[name], reference, draw(operators[name]))
    expectation = oracle.expect(case)
    right = judge(operators[name], expectation, case.results, case.results, Policy())
    assert right.status == "pass"
    assert right.worst_ratio < 8
    shifted = np.ascontiguousarray(np.roll(case.results[0], 1, -1))
    wrong = judge(operators[name], expectation, case.results, [shifted], Policy())
    assert wrong.status == "fail"
    assert wrong.worst_ratio > 500 * max(1.0, right.worst_ratio)


@pytest.mark.parametrize("at", [0, -1])
def test_one_term_lost_from_a_sum_is_found(
    at: int, operators: dict[str, Operator], reference: ReferenceModule, oracle: Oracle
) -> None:
    inputs = draw(operators["matmul"])
    case = make_case(operators["matmul"], reference, inputs)
    inputs[0] = inputs[0].copy()
    inputs[0][:, at] = 0
    lost = make_case(operators["matmul"], reference, inputs).results
    verdict = judge(operators["matmul"], oracle.expect(case), case.results, lost, Policy())
    assert verdict.status == "fail"
    assert verdict.worst_ratio > 1e4


def test_sensitivity_knows_conditioning(
    operators: dict[str, Operator], reference: ReferenceModule, oracle: Oracle
) -> None:
    """A dot product that cancels is as uncertain as its terms, not as its value."""
    inputs = draw(operators["matmul"])
    inputs[0][:, 45:] = inputs[0][:, :45]
    inputs[1][45:] = -inputs[1][:45]
    case = make_case(operators["matmul"], reference, inputs)
    output = oracle.expect(case).outputs[0]
    assert np.abs(output.values).max() < 1e-5
    terms = np.abs(inputs[0]).astype(np.float64) @ np.abs(inputs[1]).astype(np.float64)
    share = output.sensitivity / terms
    assert share.min() > 1e-9 and share.max() < 2.0**-23


def test_moved_data_is_exact_and_needs_no_movement(
    operators: dict[str, Operator], reference: ReferenceModule, oracle: Oracle
) -> None:
    expectation = oracle.expect(make_case(operators["copy"], reference, draw(operators["copy"])))
    assert expectation.repeats == 0
    assert not expectation.outputs[0].sensitivity.any()
    assert expectation.outputs[0].reference_ratio == 0.0


def test_integers_are_not_moved_so_indices_stay_in_range(
    operators: dict[str, Operator], reference: ReferenceModule, oracle: Oracle
) -> None:
    inputs = draw(operators["take"])
    inputs[1][:] = [0, 39, 39, 0, 1]
    expectation = oracle.expect(make_case(operators["take"], reference, inputs))
    np.testing.assert_array_equal(expectation.outputs[0].values, inputs[0][inputs[1]])
    count = oracle.expect(make_case(operators["count"], reference, draw(operators["count"])))
    assert count.repeats == 0
    assert not count.outputs[0].sensitivity.any()


def test_an_argmax_knows_what_it_points_into(
    operators: dict[str, Operator], reference: ReferenceModule, oracle: Oracle
) -> None:
    inputs = draw(operators["argmax"])
    inputs[0][0, [10, 20]] = 9.0
    case = make_case(operators["argmax"], reference, inputs)
    expectation = oracle.expect(case)
    source = expectation.outputs[0].source
    assert source is not None
    assert (source.axis, source.drops_axis) == (1, True)
    other = case.results[0].copy()
    other[0] = 20 if other[0] == 10 else 10
    assert judge(operators["argmax"], expectation, None, [other], Policy()).status == "pass"
    other[0] = 11
    assert judge(operators["argmax"], expectation, None, [other], Policy()).status == "fail"


def test_codes_and_predicates_are_free_only_at_their_boundary(
    operators: dict[str, Operator], reference: ReferenceModule, oracle: Oracle
) -> None:
    inputs = draw(operators["positive"])
    inputs[0][0, 0] = 0.5
    case = make_case(operators["positive"], reference, inputs)
    expectation = oracle.appeal(case)
    flipped = case.results[0].copy()
    flipped[0, 0] = not flipped[0, 0]
    assert judge(operators["positive"], expectation, None, [flipped], Policy()).status == "pass"
    flipped[0, 1] = not flipped[0, 1]
    assert judge(operators["positive"], expectation, None, [flipped], Policy()).status == "fail"

    inputs = draw(operators["round"])
    # Half-way, and further than three units from there: a right kernel may be that far off.
    inputs[0][0, :3] = [0.5, 0.5 + 4e-7, 0.5 + 4e-5]
    case = make_case(operators["round"], reference, inputs)
    expectation = oracle.appeal(case)
    for at, allowed in ((0, True), (1, True), (2, False), (3, False)):
        other = case.results[0].copy()
        other[0, at] += 1 if other[0, at] == 1 else -1
        verdict = judge(operators["round"], expectation, None, [other], Policy())
        assert (verdict.status == "pass") == allowed
    other = case.results[0].copy()
    other[0, 0] += 2 if other[0, 0] == 1 else -2
    assert judge(operators["round"], expectation, None, [other], Policy()).status == "fail"


def test_what_is_only_compared_is_the_same_everywhere(
    operators: dict[str, Operator], reference: ReferenceModule, oracle: Oracle
) -> None:
    inputs = draw(operators["compare"])
    inputs[0][0, 0] = 0.5
    case = make_case(operators["compare"], reference, inputs)
    expectation = oracle.appeal(case)
    assert expectation.repeats == 0
    flipped = case.results[0].copy()
    flipped[0, 0] = not flipped[0, 0]
    assert judge(operators["compare"], expectation, None, [flipped], Policy()).status == "fail"


def equal(first: Expectation, second: Expectation) -> bool:
    return (first.terms, first.repeats) == (second.terms, second.repeats) and all(
        np.array_equal(a.values, b.values, equal_nan=True)
        and np.array_equal(a.sensitivity, b.sensitivity)
        and a.reference_ratio == b.reference_ratio
        and (a.source is None) == (b.source is None)
        for a, b in zip(first.outputs, second.outputs, strict=True)
    )


def test_what_the_cache_gives_back_is_equal_to_the_last_bit(
    operators: dict[str, Operator],
    reference: ReferenceModule,
    twins: ReferenceModule,
    tmp_path: Path,
) -> None:
    cases = [make_case(operator, reference, draw(operator)) for operator in operators.values()]
    cache = tmp_path / "oracle.sqlite"
    with Oracle(operators, lambda _: twins, Policy(), cache=cache) as first:
        fresh = [first.expect(case) for case in cases]

    def refuse(_: Iterable[Operator]) -> Mapping[str, Callable[..., None]]:
        raise AssertionError("a warm cache compiles no twin")

    with Oracle(operators, refuse, Policy(), cache=cache) as second:
        for case, expectation in zip(cases, fresh, strict=True):
            assert equal(second.expect(case), expectation)


def test_other_inputs_or_another_seed_are_not_taken_from_the_cache(
    operators: dict[str, Operator],
    reference: ReferenceModule,
    twins: ReferenceModule,
    tmp_path: Path,
) -> None:
    cache = tmp_path / "oracle.sqlite"
    operator = operators["matmul"]
    first, second = (make_case(operator, reference, draw(operator, seed)) for seed in (0, 1))
    with Oracle(operators, lambda _: twins, Policy(), cache=cache) as oracle:
        assert not equal(oracle.expect(first), oracle.expect(second))
    with Oracle(operators, lambda _: twins, Policy(seed=5), cache=cache) as oracle:
        again = oracle.expect(first)
    with Oracle(operators, lambda _: twins, Policy(), cache=cache) as oracle:
        assert not np.array_equal(
            again.outputs[0].sensitivity, oracle.expect(first).outputs[0].sensitivity
        )


def test_prefetching_gives_the_same_and_twins_are_compiled_once(
    operators: dict[str, Operator], reference: ReferenceModule, twins: ReferenceModule
) -> None:
    operator = operators["norm"]
    cases = [
        MemoryCase(f"t{i}", *_rest(make_case(operator, reference, draw(operator, i))))
        for i in range(12)
    ]
    compiled = []

    def compile_once(_: Iterable[Operator]) -> ReferenceModule:
        compiled.append(1)
        return twins

    with (
        Oracle(operators, compile_once, Policy()) as ahead,
        Oracle(operators, lambda _: twins, Policy()) as plain,
    ):
        ahead.warm_up()
        ahead.prefetch(cases)
        assert all(equal(ahead.expect(case), plain.expect(case)) for case in cases)
    assert compiled == [1]


def _rest(case: MemoryCase) -> tuple[Any, ...]:
    return case.operator, case.arrays, case.results, case.lifetimes


def test_a_long_sum_stays_within_the_limits() -> None:
    """Float32 added strictly one by one: the least accurate order a right kernel may choose."""
    operator = make_operator("long", [((4, 8000), "float32"), ((8000, 6), "float32")], op.matmul)
    x, w = draw(operator)
    total = np.zeros((4, 6), np.float32)
    for k in range(x.shape[1]):
        total += x[:, k : k + 1] * w[k : k + 1]
    case = MemoryCase("t", "long", (x, w), (total,), ("activation", "weight"))
    twin = compile_twins([operator])
    with Oracle({"long": operator}, lambda _: twin, Policy()) as oracle:
        expectation = oracle.expect(case)
    assert judge(operator, expectation, None, [total], Policy()).status == "pass"
    assert float_errors(expectation.outputs[0], total.astype(np.float64)).max() > 5


@pytest.mark.parametrize("largest", [15.0, 60.0])
def test_an_exponential_does_not_excuse_those_beside_it(largest: float) -> None:
    operator = make_operator("exp", [((4, 64), "float32")], relax.op.exp)
    inputs = draw(operator)
    inputs[0][:, 0] = largest
    case = make_case(operator, compile_reference([operator]), inputs)
    with Oracle({operator.name: operator}, compile_twins, Policy()) as oracle:
        expectation = oracle.appeal(case)
    right = judge(operator, expectation, case.results, case.results, Policy())
    assert right.status == "pass"
    wrong = case.results[0] * np.array([1.0] + [2.0] * 63, np.float32)
    verdict = judge(operator, expectation, case.results, [wrong], Policy())
    assert verdict.status == "fail"


def test_an_operator_the_plan_does_not_have_is_named(oracle: Oracle) -> None:
    case = MemoryCase("t", "unknown", (), (), ())
    with pytest.raises(InputError, match="'unknown', which the plan does not have"):
        oracle.expect(case)


def test_a_damaged_entry_is_computed_again(
    operators: dict[str, Operator],
    reference: ReferenceModule,
    twins: ReferenceModule,
    tmp_path: Path,
) -> None:
    cache = tmp_path / "oracle.sqlite"
    case = make_case(operators["matmul"], reference, draw(operators["matmul"]))
    with Oracle(operators, lambda _: twins, Policy(), cache=cache) as oracle:
        fresh = oracle.expect(case)
    with sqlite3.connect(cache) as database:
        database.execute("UPDATE expectation SET data = substr(data, 1, length(data) - 9)")
    database.close()
    with Oracle(operators, lambda _: twins, Policy(), cache=cache) as oracle:
        assert equal(oracle.expect(case), fresh)


def test_a_cache_that_is_no_database_is_one_clear_error(
    operators: dict[str, Operator], tmp_path: Path
) -> None:
    path = tmp_path / "oracle.sqlite"
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(SetupError, match=r"cache .*oracle\.sqlite cannot be used"):
        Oracle(operators, compile_twins, Policy(), cache=path)


def test_another_compiler_version_is_another_expectation(
    operators: dict[str, Operator],
    reference: ReferenceModule,
    twins: ReferenceModule,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = make_case(operators["matmul"], reference, draw(operators["matmul"]))
    cache = tmp_path / "oracle.sqlite"
    compiled = []

    def compile_here(_: Iterable[Operator]) -> Mapping[str, Any]:
        compiled.append(1)
        return twins

    for version in ("apache-tvm 1", "apache-tvm 1", "apache-tvm 2"):
        monkeypatch.setattr("tapml.oracles.oracle.compiler_versions", lambda v=version: v)
        with Oracle(operators, compile_here, Policy(), cache=cache) as oracle:
            oracle.expect(case)
    assert len(compiled) == 2


def test_what_is_made_from_integers_alone_may_round_its_angle() -> None:
    operator = make_operator(
        "angles",
        [((8, 40), "int32")],
        lambda x: op.cos(op.multiply(op.astype(x, "float32"), relax.const(0.37, "float32"))),
    )
    reference = compile_reference([operator])
    positions = np.arange(1000, 1320, dtype=np.int32).reshape(8, 40)
    case = make_case(operator, reference, [positions])
    with Oracle({operator.name: operator}, compile_twins, Policy()) as oracle:
        expectation = oracle.expect(case)
    verdict = judge(operator, expectation, case.read_outputs(), case.read_outputs(), Policy())
    assert (verdict.status, verdict.suspect) == ("pass", "")
    wrong = [np.roll(case.read_outputs()[0], 1, axis=0)]
    assert judge(operator, expectation, case.read_outputs(), wrong, Policy()).status == "fail"


def test_a_perturbed_exponent_takes_no_sum_out_of_its_domain() -> None:
    """ONNX files have the two of a square as a tensor, and of a negative number nothing else is."""
    squares = make_operator(
        "squares",
        [((6, 90), "float32"), ((1,), "float32")],
        lambda x, exponent: op.sum(op.power(x, exponent), [1]),
    )
    x, _ = draw(squares)
    case = make_case(squares, compile_reference([squares]), [x, np.full(1, 2, np.float32)])
    twins = compile_twins([squares])
    with Oracle({"squares": squares}, lambda _: twins, Policy()) as oracle:
        output = oracle.expect(case).outputs[0]
    share = output.sensitivity / output.values * 2**23
    assert (share > 0.02).all()
    assert (share < 2).all()


def test_each_perturbation_may_take_another_input_out_of_its_domain() -> None:
    """Of one, upwards there is no arcsine."""
    arcs = make_operator(
        "arcs",
        [((1,), "float32"), ((1,), "float32")],
        lambda x, y: op.add(op.asin(x), op.asin(y)),
    )
    ones = np.ones(1)
    case = Case(arcs, [np.ones(1, np.float32)] * 2, [np.full(1, np.pi, np.float32)], {}, [None] * 2)
    twin = compile_twins([arcs])["arcs"]
    exact = run_twin(case, twin, [ones, ones])
    moving = ["float32", "float32"]
    found = perturbed_outputs(case, twin, Perturbations(0), range(12), moving, exact)
    sums = np.concatenate([output for (output,) in found])
    assert np.isfinite(sums).all()
    assert (sums < np.pi).any()
