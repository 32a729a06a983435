"""Each invariant of a plan, broken on its own, is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec import structs

from tapml.plan.graph_plan import (
    CallStep,
    Entry,
    GraphPlan,
    Operator,
    StateBinding,
    Storage,
    TensorSpecification,
    Value,
    ViewStep,
)
from tapml.plan.validation import check_plan
from tapml_targets.errors import InputError
from tapml_targets.library import Parameter


def plan() -> GraphPlan:
    """Add a weight to a state tensor, return a view of the result."""
    shape = (2, 3)
    operator = Operator(
        name="add",
        hash="0" * 16,
        parameters=(
            Parameter("input_0", shape, "float32", "input"),
            Parameter("input_1", shape, "float32", "input"),
            Parameter("output_0", shape, "float32", "output"),
        ),
        symbols=(),
        function="",
        script="",
        output_kinds=("state",),
    )
    lifetimes = {"sum": "state", "w": "weight", "after": "activation"}
    entry = Entry(
        name="main",
        symbols=(),
        inputs=(),
        outputs=("flat",),
        state=(StateBinding("sum", "sum", "after"),),
        values={
            **{name: Value(name, name, 0, shape, "float32") for name in lifetimes},
            "flat": Value("flat", "after", 0, (6,), "float32"),
        },
        storages={name: Storage(name, 24, kind) for name, kind in lifetimes.items()},  # type: ignore[arg-type]
        steps=(
            CallStep("main/add", "add", ("sum", "w", "after"), donates=(("sum", "after"),)),
            ViewStep("after", "flat"),
        ),
    )
    return GraphPlan(
        name="model",
        operators={"add": operator},
        entries={"main": entry},
        weights={"w": TensorSpecification("w", shape, "float32")},
        state={"sum": TensorSpecification("sum", shape, "float32")},
    )


def with_entry(change: Callable[[Entry], Entry]) -> GraphPlan:
    whole = plan()
    return replace(whole, entries={"main": change(whole.entries["main"])})


def with_call(**changes: object) -> GraphPlan:
    def change(entry: Entry) -> Entry:
        call, view = entry.steps
        assert isinstance(call, CallStep)
        return replace(entry, steps=(structs.replace(call, **changes), view))

    return with_entry(change)


def with_value(name: str, **changes: object) -> GraphPlan:
    def change(entry: Entry) -> Entry:
        value = replace(entry.values[name], **changes)  # type: ignore[arg-type]
        return replace(entry, values={**entry.values, name: value})

    return with_entry(change)


def with_storage(name: str, **changes: object) -> GraphPlan:
    def change(entry: Entry) -> Entry:
        storage = replace(entry.storages[name], **changes)  # type: ignore[arg-type]
        return replace(entry, storages={**entry.storages, name: storage})

    return with_entry(change)


def with_operator(**changes: object) -> GraphPlan:
    whole = plan()
    return replace(whole, operators={"add": replace(whole.operators["add"], **changes)})  # type: ignore[arg-type]


BROKEN: dict[str, tuple[GraphPlan, str]] = {
    "an operator under another name": (with_operator(name="sub"), "has the name 'sub'"),
    "an unknown dtype": (
        with_operator(parameters=(Parameter("output_0", (), "float31", "output"),)),
        "float31",
    ),
    "two parameters of one name": (
        with_operator(parameters=(Parameter("x", (), "bool", "output"),) * 2),
        "two parameters with the same name",
    ),
    "a kind too many": (with_operator(output_kinds=("value", "value")), "has 2 kinds"),
    "a missing operator": (with_call(operator="mul"), "no operator 'mul'"),
    "an argument too few": (with_call(arguments=("sum", "after")), "2 arguments for 3"),
    "a value that does not exist": (
        with_call(arguments=("sum", "v", "after")),
        "'v' is not a value",
    ),
    "a value used before it is made": (
        with_call(arguments=("sum", "flat", "after"), donates=()),
        "float32 of rank 1",
    ),
    "a write to a weight": (with_call(arguments=("sum", "w", "w"), donates=()), "writes 'w'"),
    "a symbol nobody asked for": (with_call(symbols=(("n", 1),)), "passes the symbols"),
    "a donation of a weight": (with_call(donates=(("w", "after"),)), "donates"),
    "a value without storage": (with_value("after", storage="nowhere"), "has no storage"),
    "an unknown symbol": (with_value("flat", shape=("n",)), "unknown symbols: n"),
    "a view of another dtype": (with_value("flat", dtype="int32"), "does not share the memory of"),
    "a storage of unknown size": (with_storage("after", nbytes="n"), "unknown symbols: n"),
    "state of another shape": (
        replace(plan(), state={"sum": TensorSpecification("sum", (9,), "float32")}),
        "the plan lists",
    ),
    "a weight that is not listed": (replace(plan(), weights={}), "weight 'w' is not listed"),
    "an output nobody makes": (
        with_entry(lambda e: replace(e, outputs=("other",))),
        "'other' is never defined",
    ),
    "a step that is gone": (
        with_entry(lambda e: replace(e, steps=e.steps[1:])),
        "view 'flat' has an undefined source",
    ),
    "a view made twice": (
        with_entry(lambda e: replace(e, steps=(*e.steps, e.steps[1]))),
        "'flat' is defined twice",
    ),
    "one site name for two calls": (
        with_entry(lambda e: replace(e, steps=(*e.steps, e.steps[0]))),
        "is already defined",
    ),
}


def named(name: str) -> GraphPlan:
    """The plan with its operator under another name."""
    changed = with_call(operator=name)
    operator = replace(changed.operators["add"], name=name)
    return replace(changed, operators={name: operator})


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\\b", ".git", "x\0", "x" * 129])
def test_an_operator_whose_name_is_no_folder_s_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="the name is also a folder name"):
        check_plan(named(name))


@pytest.mark.parametrize("name", ["fused_rms_norm_2", "aten.add-1", "größer", "x" * 128])
def test_an_operator_may_be_called_like_a_folder(name: str) -> None:
    check_plan(named(name))


def test_the_plan_that_is_broken_below_is_whole() -> None:
    check_plan(plan())


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_plan_is_refused_with_what_is_wrong(what: str) -> None:
    broken, message = BROKEN[what]
    with pytest.raises(InputError, match=message):
        check_plan(broken)
