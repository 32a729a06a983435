"""Linked Libraries do together what they did apart; an entry is one call."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from tapml.compiler.link import link, link_entries
from tapml.plan.graph_plan import (
    CallStep,
    Entry,
    GraphPlan,
    StateBinding,
    Step,
    Storage,
    TensorSpecification,
    Value,
    ViewStep,
)
from tapml_targets.driver import Driver
from tapml_targets.errors import CompileError, InputError
from tapml_targets.library import Library
from tapml_targets.library_check import check_library
from tapml_targets.opencl.codegen import generate
from tests.compiler.operators import OPENCL, run, scale, softmax, source

_DOUBLE, _TRIPLE = scale("double", factor=2.0), scale("triple", factor=3.0)


@pytest.fixture(scope="module")
def libraries() -> dict[str, Library]:
    return {of.name: generate(source(of), OPENCL) for of in (_DOUBLE, _TRIPLE)}


def _value(name: str, storage: str | None = None) -> Value:
    return Value(name, storage or name, 0, ("n", 8), "float32")


def _storage(name: str, lifetime: str) -> Storage:
    return Storage(name, ("mul", 32, "n"), lifetime)  # type: ignore[arg-type]


def _chain() -> GraphPlan:
    """Double, view, triple, triple, double: three intermediates, one state, a result."""
    steps: list[Step] = [
        CallStep("s/1", "double", ("x", "a")),
        ViewStep("a", "a.view"),
        CallStep("s/2", "triple", ("a.view", "b")),
        CallStep("s/3", "triple", ("b", "c")),
        CallStep("s/4", "double", ("c", "y")),
        CallStep("s/5", "triple", ("memory", "memory.new")),
    ]
    names = ("x", "a", "b", "c", "y", "memory", "memory.new")
    lifetimes = {"x": "input", "memory": "state"}
    entry = Entry(
        name="run",
        symbols=("n",),
        inputs=("x",),
        outputs=("y",),
        state=(StateBinding("memory", "memory", "memory.new"),),
        values={name: _value(name) for name in names} | {"a.view": _value("a.view", "a")},
        storages={name: _storage(name, lifetimes.get(name, "activation")) for name in names},
        steps=tuple(steps),
    )
    return GraphPlan(
        name="chain",
        operators={"double": _DOUBLE, "triple": _TRIPLE},
        entries={"run": entry},
        weights={},
        state={"memory": TensorSpecification("memory", (3, 8), "float32")},
    )


def _with_entry(plan: GraphPlan, entry: Entry) -> GraphPlan:
    return replace(plan, entries={entry.name: entry})


def test_linked_operators_all_run(driver: Driver, libraries: dict[str, Library]) -> None:
    linked = link(libraries.values())
    check_library(linked)
    given = np.ones((2, 8), np.float32)
    for name, factor in (("double", 2), ("triple", 3)):
        _, result = run(driver, linked, name, [given, np.zeros_like(given)])
        np.testing.assert_array_equal(result, factor * given)


def test_linking_the_same_library_twice_changes_nothing(libraries: dict[str, Library]) -> None:
    assert link([libraries["double"], libraries["double"]]) == libraries["double"]


def test_kernels_with_equal_names_stay_distinct(driver: Driver) -> None:
    first, second = (generate(source(scale("same", factor=f)), OPENCL) for f in (2.0, 3.0))
    second = replace(
        second, operators={"other": structs.replace(second.operators["same"], name="other")}
    )
    linked = link([first, second])
    assert sorted(linked.kernels) == ["other/same_kernel", "same_kernel"]
    given = np.ones((1, 8), np.float32)
    for name, factor in (("same", 2), ("other", 3)):
        _, result = run(driver, linked, name, [given, np.zeros_like(given)])
        np.testing.assert_array_equal(result, factor * given)


def test_an_operator_defined_twice_is_refused() -> None:
    first, second = (generate(source(scale("same", factor=f)), OPENCL) for f in (2.0, 3.0))
    with pytest.raises(InputError, match="define operator 'same' differently"):
        link([first, second])


def test_targets_do_not_mix(libraries: dict[str, Library]) -> None:
    with pytest.raises(InputError, match="'opencl' and 'cpu' cannot be linked"):
        link([libraries["double"], replace(libraries["triple"], target="cpu")])
    with pytest.raises(InputError, match="nothing to link"):
        link([])


def test_an_entry_runs_as_one_call(driver: Driver, libraries: dict[str, Library]) -> None:
    linked = link_entries(_chain(), libraries)
    check_library(linked)
    names = [p.name for p in linked.entries["run"].parameters]
    assert names == ["input:x", "output:y", "state:memory", "next:memory"]
    given = np.arange(24, dtype=np.float32).reshape(3, 8)
    memory = np.ones((3, 8), np.float32)
    arrays = [given, np.zeros_like(given), memory, np.zeros_like(memory)]
    _, result, before, after = run(driver, linked, "run", arrays)
    np.testing.assert_array_equal(result, 36 * given)
    np.testing.assert_array_equal(before, memory)
    np.testing.assert_array_equal(after, 3 * memory)


def test_intermediates_share_memory_but_never_while_both_are_needed(
    libraries: dict[str, Library],
) -> None:
    program = link_entries(_chain(), libraries).entries["run"]
    assert [s.nbytes for s in program.storages] == [("mul", 32, "n")] * 2
    home = {value.name: value.storage for value in program.values}
    for call in program.calls:
        assert len({home[name] for name in call.arguments}) == len(call.arguments)


def test_an_operator_without_a_library_is_named(libraries: dict[str, Library]) -> None:
    with pytest.raises(CompileError, match="no Library for triple"):
        link_entries(_chain(), {"double": libraries["double"]})


def test_a_result_that_no_operator_writes_is_refused(libraries: dict[str, Library]) -> None:
    plan = _chain()
    entry = replace(plan.entries["run"], outputs=("x",))
    with pytest.raises(CompileError, match="'output:x' is part of another tensor"):
        link_entries(_with_entry(plan, entry), libraries)


def test_a_result_returned_twice_is_refused(libraries: dict[str, Library]) -> None:
    plan = _chain()
    entry = replace(plan.entries["run"], outputs=("y", "y"))
    with pytest.raises(CompileError, match="are the same tensor"):
        link_entries(_with_entry(plan, entry), libraries)


def test_an_unwritten_state_has_no_successor(libraries: dict[str, Library]) -> None:
    plan = _chain()
    entry = replace(plan.entries["run"], state=(StateBinding("memory", "memory", "memory"),))
    program = link_entries(_with_entry(plan, entry), libraries).entries["run"]
    assert "next:memory" not in [p.name for p in program.parameters]


def test_equal_modules_are_kept_once() -> None:
    library = generate(source(softmax()), OPENCL)
    moved = replace(
        library, operators={"again": structs.replace(library.operators["softmax"], name="again")}
    )
    linked = link([library, moved])
    assert len(linked.modules) == 1
    assert len(linked.kernels) == 1
