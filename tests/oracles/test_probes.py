"""Exact probes: right kernels give their bits everywhere, wrong ones show at full size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tvm import relax, te, tirx

from tapml.compiler.compiler import Compiler
from tapml.compiler.reference import compile_reference
from tapml.compiler.twin import compile_twins
from tapml.oracles.probes import ProbeCase, probes_of, to_raw, why_no_probe
from tapml.plan.graph_plan import Operator
from tapml.replaying.replayer import replay
from tapml.verdicts.judge import judge
from tapml.verdicts.policy import Policy
from tapml.verdicts.verdict import Verdict
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.library import Library
from tapml_targets.target import Target
from tests.conftest import RequireDevice
from tests.oracles.cases import ProbeOracle, make_case
from tests.oracles.operators import make_operator, operator_from

op = relax.op
POLICY = Policy()
LENGTH = 1536


# Where the n terms of a sum are read from, and which of them are added up.
Terms = Callable[[Any], Any]
RIGHT: tuple[int, Terms] = (LENGTH, lambda k: k)
WRONG: dict[str, tuple[int, Terms]] = {
    "last term lost": (LENGTH - 1, lambda k: k),
    "first term lost": (LENGTH - 1, lambda k: k + 1),
    "a term in the middle lost": (
        LENGTH - 1,
        lambda k: k + tirx.if_then_else(k < 700, 0, 1),
    ),
    "one term in another's place": (LENGTH, lambda k: tirx.if_then_else(k == 700, 701, k)),
}


def product(dtype: str, rows: int, terms: tuple[int, Terms] = RIGHT) -> Operator:
    """(rows, LENGTH) times (LENGTH, 200), of some of its terms."""
    count, place = terms
    first = te.placeholder((rows, LENGTH), dtype, name="first")
    second = te.placeholder((LENGTH, 200), dtype, name="second")
    axis = te.reduce_axis((0, count), name="k")
    result = te.compute(
        (rows, 200),
        lambda i, j: te.sum(first[i, place(axis)] * second[place(axis), j], axis=axis),
    )
    return operator_from("product", te.create_prim_func([first, second, result]), 2)


def probes(operator: Operator) -> tuple[ProbeCase, ...]:
    generator = np.random.default_rng(0)
    reference, twins = compile_reference([operator]), compile_twins([operator])
    inputs = [
        to_raw(generator.standard_normal([int(str(n)) for n in p.shape]), p.dtype)
        for p in operator.read
    ]
    case = make_case(operator, reference, inputs)
    return probes_of(operator, case, twins[operator.name], reference[operator.name])


def on_host(operator: Operator, probe: ProbeCase) -> Verdict:
    output = np.zeros_like(probe.results[0])
    compile_reference([operator])[operator.name](*probe.arrays, output)
    return judge(operator, probe.expectation, probe.results, [output], POLICY)


@pytest.fixture(scope="module")
def brain_probes() -> dict[int, tuple[ProbeCase, ...]]:
    return {rows: probes(product("bfloat16", rows)) for rows in (1, 24)}


@pytest.mark.parametrize("rows", [1, 24])
@pytest.mark.parametrize("wrong", WRONG)
def test_in_bfloat16_a_lost_term_of_a_long_sum_is_found(
    wrong: str, rows: int, brain_probes: dict[int, tuple[ProbeCase, ...]]
) -> None:
    found = [on_host(product("bfloat16", rows, WRONG[wrong]), p) for p in brain_probes[rows]]
    assert len(found) == 2
    assert "fail" in {verdict.status for verdict in found}


def test_another_order_of_summation_gives_the_same_bits(
    brain_probes: dict[int, tuple[ProbeCase, ...]],
) -> None:
    backwards = product("bfloat16", 24, (LENGTH, lambda k: LENGTH - 1 - k))
    for probe in brain_probes[24]:
        verdict = on_host(backwards, probe)
        assert verdict.status == "pass" and verdict.worst_ratio == 0


def test_every_term_of_every_sum_counts_somewhere(
    brain_probes: dict[int, tuple[ProbeCase, ...]],
) -> None:
    for rows, made in brain_probes.items():
        counted = np.zeros(LENGTH, np.bool_)
        for probe in made:
            first, second = probe.arrays
            counted |= (first != 0).any(axis=0) & (second != 0).any(axis=1)
        assert counted.all(), rows


@pytest.fixture(scope="module")
def half_session(require_device: RequireDevice) -> Iterator[Session]:
    device = require_device("opencl", vendor="Intel", dtype="float16")[0]
    with open_local(device) as opened:
        yield opened


def compiled(operator: Operator, session: Session) -> Library:
    with Compiler() as compiler:
        return compiler.compile(operator, Target("opencl", limits=session.device.limits))


def test_on_a_device_in_float16_right_kernels_pass_and_a_lost_term_fails(
    half_session: Session,
) -> None:
    operator = product("float16", 24)
    made = probes(operator)
    right = compiled(operator, half_session)
    wrong = compiled(product("float16", 24, WRONG["last term lost"]), half_session)
    statuses = []
    for probe in made:
        result = replay(operator, probe, right, half_session, ProbeOracle(), POLICY)
        assert result.verdict.status == "pass" and result.verdict.worst_ratio == 0
        result = replay(operator, probe, wrong, half_session, ProbeOracle(), POLICY)
        statuses.append(result.verdict.status)
    assert "fail" in statuses


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (op.nn.softmax, "a softmax output rounds"),
        (op.exp, "a transcendental output rounds"),
        (lambda x: op.mean(x, axis=[1]), "subtracts or divides"),
        (op.permute_dims, "its carved tests are exact"),
    ],
)
def test_where_there_is_no_probe_it_is_said_why(build: Callable[..., Any], why: str) -> None:
    operator = make_operator("operator", [((6, 90), "float32")], build)
    assert why in why_no_probe(operator)
    assert probes(operator) == ()


def test_a_scale_that_is_no_power_of_two_leaves_no_probe() -> None:
    def scaled(a: Any, b: Any) -> Any:
        return op.multiply(op.matmul(a, b), relax.const(0.3, "float32"))

    arguments = [((6, 90), "float32"), ((90, 5), "float32")]
    assert probes(make_operator("scaled", arguments, scaled)) == ()


def test_a_probe_keeps_the_integers_that_were_carved() -> None:
    operator = make_operator(
        "rows",
        [((5, 1), "int32"), ((5, 8), "float16"), ((5, 8), "float16")],
        lambda n, x, y: op.add(op.multiply(x, op.astype(n, "float16")), y),
    )
    generator = np.random.default_rng(0)
    inputs: list[np.ndarray] = [
        np.array([[39], [0], [7], [7], [3]], np.int32),
        generator.standard_normal((5, 8)).astype(np.float16),
        generator.standard_normal((5, 8)).astype(np.float16),
    ]
    reference, twins = compile_reference([operator]), compile_twins([operator])
    case = make_case(operator, reference, inputs)
    made = probes_of(operator, case, twins["rows"], reference["rows"])
    assert len(made) == 2
    for probe in made:
        np.testing.assert_array_equal(probe.arrays[0], inputs[0])
        assert probe.arrays[1].any() and probe.arrays[2].any()
