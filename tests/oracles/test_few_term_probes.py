"""Probes of few terms: a lost term of a softmax, a norm or a mean shows in narrow dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tapml.compiler.compiler import Compiler
from tapml.compiler.reference import compile_reference
from tapml.compiler.twin import compile_twins
from tapml.oracles.few_term_probes import (
    few_term_probes_of,
    has_few_term_probes,
    stand_in_probes_of,
)
from tapml.oracles.probes import ProbeCase, probes_of, to_raw
from tapml.plan.graph_plan import Operator
from tapml.replaying.replayer import replay
from tapml.verdicts.judge import judge
from tapml.verdicts.policy import Policy
from tapml_rpc.local import open_local
from tapml_targets.target import Target
from tests.conftest import RequireDevice
from tests.oracles.cases import ProbeOracle, make_case
from tests.oracles.operators import make_operator

op = relax.op
POLICY = Policy()
LENGTH = 1536
BUILDS: dict[str, Callable[..., Any]] = {
    "softmax": op.nn.softmax,
    "mean": lambda x: op.mean(x, axis=[1]),
}


def make(name: str, dtype: str) -> Operator:
    if name == "norm":
        arguments = [((20, LENGTH), dtype), ((LENGTH,), dtype)]
        return make_operator(name, arguments, lambda x, w: op.nn.rms_norm(x, w, axes=[-1]))
    return make_operator(name, [((20, LENGTH), dtype)], BUILDS[name])


def probes(
    operator: Operator, make: Callable[..., tuple[ProbeCase, ...]] = few_term_probes_of
) -> tuple[ProbeCase, ...]:
    generator = np.random.default_rng(0)
    reference, twins = compile_reference([operator]), compile_twins([operator])
    inputs = [
        to_raw(generator.standard_normal([int(str(n)) for n in p.shape]), p.dtype)
        for p in operator.read
    ]
    case = make_case(operator, reference, inputs)
    return make(operator, case, twins[operator.name], reference[operator.name])


@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["softmax", "mean", "norm"])
def test_a_lost_term_is_found(name: str, dtype: str, at: int) -> None:
    operator = make(name, dtype)
    reference = compile_reference([operator])[name]
    statuses = set()
    for probe in probes(operator):
        # A kernel that leaves a term out gives what a right one gives without it.
        without = [array.copy() for array in probe.arrays]
        without[0][:, at] = to_raw(np.array(-30000.0 if name == "softmax" else 0.0), dtype)
        output = np.zeros_like(probe.results[0])
        reference(*without, output)
        verdict = judge(operator, probe.expectation, probe.results, [output], POLICY)
        statuses.add(verdict.status)
    assert "fail" in statuses


def test_right_kernels_pass_on_a_device(require_device: RequireDevice) -> None:
    device = require_device("opencl", vendor="Intel", dtype="float16")[0]
    with open_local(device) as session, Compiler() as compiler:
        for name in ("softmax", "mean", "norm"):
            operator = make(name, "float16")
            made = probes(operator)
            assert len(made) == 2
            library = compiler.compile(operator, Target("opencl", limits=session.device.limits))
            for probe in made:
                result = replay(operator, probe, library, session, ProbeOracle(), POLICY)
                assert result.verdict.status == "pass", result.verdict.reason
                assert result.verdict.worst_ratio < 2


def test_only_sums_that_round_have_them() -> None:
    argument = [((6, 90), "float16")]
    assert has_few_term_probes(make_operator("x", argument, op.nn.softmax))
    for build in (op.exp, op.permute_dims, lambda x: op.sum(x, axis=[1])):
        operator = make_operator("x", argument, build)
        assert not has_few_term_probes(operator)
        assert probes(operator) == ()


def scores(length: int, scale: float) -> Operator:
    """A product with a scale and a mask behind it, as attention has: float16, then float32."""

    def build(x: Any, y: Any, mask: Any) -> Any:
        product = op.astype(op.matmul(x, y, out_dtype="float32"), "float16")
        scaled = op.multiply(product, relax.const(np.float16(scale)))
        return op.astype(op.add(scaled, mask), "float32")

    shapes = (6, 1, length), (6, length, 64), (1, 1, 64)
    return make_operator("scores", [(shape, "float16") for shape in shapes], build)


@pytest.mark.parametrize("length", [12, LENGTH])
def test_a_product_that_rounds_behind_its_sum_shows_each_lost_end(length: int) -> None:
    operator = scores(length, 12**-0.5)
    assert probes(operator, probes_of) == ()
    reference = compile_reference([operator])["scores"]
    made = probes(operator, stand_in_probes_of)
    assert len(made) == 2
    for at in (0, -1):
        statuses = set()
        for probe in made:
            arrays = [array.copy() for array in probe.arrays]
            arrays[0][..., at] = 0
            output = np.zeros_like(probe.results[0])
            reference(*arrays, output)
            verdict = judge(operator, probe.expectation, probe.results, [output], POLICY)
            statuses.add(verdict.status)
        assert "fail" in statuses
    for probe in made:
        verdict = judge(operator, probe.expectation, probe.results, probe.results, POLICY)
        assert verdict.status == "pass"


def test_what_only_moves_or_divides_has_no_probe_in_the_place_of_exact_ones() -> None:
    argument = [((6, 90), "float16")]
    for build in (op.permute_dims, op.nn.softmax, lambda x: op.sum(x, axis=[1])):
        assert probes(make_operator("x", argument, build), stand_in_probes_of) == ()
