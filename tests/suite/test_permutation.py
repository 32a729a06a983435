"""Operators that only move data are found by trying, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tapml.compiler.reference import compile_reference
from tapml.execute.binding import bind_entry
from tapml.execute.program import plan_program
from tapml.plan.graph_plan import CallStep, Entry, GraphPlan, Storage, Value
from tapml.suite.permutation import PermutationFinder
from tapml_targets.expression import evaluate, product
from tests.oracles.operators import make_operator

SHAPE = (1, 2, 96, 96)
MOVES: dict[str, Callable[[Any], Any]] = {
    "transpose": lambda x: relax.op.permute_dims(x, [0, 1, 3, 2]),
    "repeat": lambda x: relax.op.repeat(x, 2, axis=1),
    "flip": lambda x: relax.op.flip(x, axis=2),
}
COMPUTES: dict[str, Callable[[Any], Any]] = {
    "add": lambda x: relax.op.add(x, relax.const(1.0, "float32")),
    "relu": relax.op.nn.relu,
    "negative": relax.op.negative,
    "softmax": relax.op.nn.softmax,
    "clip": lambda x: relax.op.clip(x, -1e30, 1e30),
    "pad": lambda x: relax.op.nn.pad(x, [0, 0, 0, 0, 1, 1, 0, 0]),
}


def plan_of(build: Callable[[Any], Any]) -> GraphPlan:
    operator = make_operator("operator", [(SHAPE, "float32")], build)
    read, written = operator.parameters
    storages = {
        "in": Storage("in", product((4, *read.shape)), "input"),
        "out": Storage("out", product((4, *written.shape)), "activation"),
    }
    values = {
        "x": Value("x", "in", 0, read.shape, read.dtype),
        "y": Value("y", "out", 0, written.shape, written.dtype),
    }
    entry = Entry(
        "main", (), ("x",), ("y",), (), values, storages, (CallStep("s", "operator", ("x", "y")),)
    )
    return GraphPlan("plan", {"operator": operator}, {"main": entry}, {}, {})


def permuted_storages(plan: GraphPlan) -> dict[str, Any]:
    program = plan_program(bind_entry(plan, "main", {}), {}, {})
    return dict(PermutationFinder(compile_reference(plan)).find(program))


@pytest.mark.parametrize("name", MOVES)
def test_a_rearrangement_is_recorded_as_its_order(name: str) -> None:
    plan = plan_of(MOVES[name])
    permuted = permuted_storages(plan)["out"]
    source = np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32)
    shape = plan.operators["operator"].parameters[1].shape
    written = np.empty([evaluate(extent, {}) for extent in shape], np.float32)
    compile_reference(plan)["operator"](source, written)
    assert permuted.order.apply(source).tobytes() == written.tobytes()


@pytest.mark.parametrize("name", COMPUTES)
def test_a_computation_is_not_taken_for_a_rearrangement(name: str) -> None:
    assert permuted_storages(plan_of(COMPUTES[name])) == {}
