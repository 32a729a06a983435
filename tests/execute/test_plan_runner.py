"""A finished plan's runner holds on the device what a run needs, and no more."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tapml.compiler.link import link_entries
from tapml.execute.plan_runner import PlanRunner, resident_state_bytes
from tapml.plan.graph_plan import (
    CallStep,
    Entry,
    GraphPlan,
    StateBinding,
    Storage,
    TensorSpecification,
    Value,
)
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.opencl.codegen import generate
from tests.compiler.operators import OPENCL, scale, source
from tests.conftest import RequireDevice

SHAPE = (3, 8)
NBYTES = 4 * 3 * 8
DOUBLE = scale("double", factor=2.0)


@pytest.fixture(scope="module")
def session(require_device: RequireDevice) -> Iterator[Session]:
    require_device("opencl")
    with open_local("opencl") as opened:
        yield opened


def plan_of(*, replaced: bool) -> GraphPlan:
    """An entry reads the state ``table``, and doubles the state ``memory`` or leaves it alone."""
    calls = [CallStep("run/1", "double", ("x", "y")), CallStep("run/2", "double", ("table", "z"))]
    if replaced:
        calls.append(CallStep("run/3", "double", ("memory", "memory.new")))
    lifetimes = {"x": "input", "table": "state", "memory": "state"}
    names = ("x", "y", "z", "table", "memory", *(("memory.new",) if replaced else ()))
    entry = Entry(
        name="run",
        symbols=(),
        inputs=("x",),
        outputs=("y", "z"),
        state=(
            StateBinding("table", "table", "table"),
            StateBinding("memory", "memory", "memory.new" if replaced else "memory"),
        ),
        values={name: Value(name, name, 0, SHAPE, "float32") for name in names},
        storages={
            name: Storage(name, NBYTES, lifetimes.get(name, "activation"))  # type: ignore[arg-type]
            for name in names
        },
        steps=tuple(calls),
    )
    state = {name: TensorSpecification(name, SHAPE, "float32") for name in ("table", "memory")}
    return GraphPlan("by hand", {"double": DOUBLE}, {"run": entry}, {}, state)


@pytest.mark.parametrize(("replaced", "tensors"), [(False, 2), (True, 3)])
def test_only_a_state_tensor_that_a_run_replaces_is_held_twice(
    session: Session, *, replaced: bool, tensors: int
) -> None:
    plan = plan_of(replaced=replaced)
    library = link_entries(plan, {"double": generate(source(DOUBLE), OPENCL)})
    given = np.arange(24, dtype=np.float32).reshape(SHAPE)
    before = session.held_bytes
    with PlanRunner(plan, {}, library, session) as runner:
        assert session.held_bytes - before == tensors * NBYTES
        assert resident_state_bytes(plan, library) == tensors * NBYTES
        for _ in range(3):
            outputs = runner.run("run", {"x": given})
            np.testing.assert_array_equal(outputs["y"], 2 * given)
            np.testing.assert_array_equal(outputs["z"], np.zeros(SHAPE))
