"""What calling an operator or an entry launches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from tapml_targets.call_plan import (
    MAX_STATEMENTS,
    BufferSlot,
    CallPlan,
    TensorShape,
    WorkspaceSlot,
    plan_call,
)
from tapml_targets.driver import ScalarUse
from tapml_targets.errors import InputError
from tapml_targets.library import (
    Bind,
    BufferArgument,
    Condition,
    EntryValue,
    Launch,
    Library,
    Loop,
    Parameter,
    ScalarArgument,
    Statement,
)
from tests.targets.libraries import add_one, library


def vectors(length: int, dtype: str = "float32") -> list[TensorShape]:
    return [TensorShape((length,), dtype), TensorShape((length,), dtype)]


def with_statements(*statements: Statement, **changes: Any) -> Library:
    operator = structs.replace(add_one(), statements=statements, **changes)
    return replace(library(), operators={"add_one": operator}, entries={})


def scalars(plan: CallPlan) -> list[int | float]:
    """The first scalar of every launch."""
    return [
        next(a.value for a in launch.arguments if isinstance(a, ScalarUse))
        for launch in plan.launches
    ]


def one(value: Any) -> Launch:
    return Launch("add", (ScalarArgument(value, "int64"),))


def test_a_shape_gives_its_symbol_a_value() -> None:
    plan = plan_call(library(), "add_one", vectors(100), {})
    (launch,) = plan.launches
    assert launch.grid == (2, 1, 1)
    assert launch.arguments[2] == ScalarUse(100, "int32")
    assert launch.arguments[:2] == (BufferSlot(1, 0, 400), BufferSlot(0, 0, 400))


def test_workspaces_take_the_slots_after_the_tensors() -> None:
    plan = plan_call(library(), "double_add", vectors(10), {})
    assert plan.workspaces == (WorkspaceSlot("w", 40, 0),)
    assert plan.launches[0].arguments[0] == BufferSlot(2, 0, 40)


def test_an_entry_chains_its_calls_over_intermediates() -> None:
    plan = plan_call(library(), "chain", vectors(10), {})
    assert [launch.step for launch in plan.launches] == [0, 0, 1]
    assert [workspace.name for workspace in plan.workspaces] == ["t", "w"]
    middle = plan.launches[1].arguments[0]
    assert middle == plan.launches[2].arguments[1] == BufferSlot(2, 0, 40)


def test_workspaces_of_two_calls_share_memory_and_intermediates_do_not() -> None:
    base = library()
    entry = base.entries["chain"]
    again = structs.replace(
        entry, calls=(entry.calls[0], structs.replace(entry.calls[0], arguments=("middle", "out")))
    )
    plan = plan_call(replace(base, entries={"chain": again}), "chain", vectors(10), {})
    assert [(w.name, w.shared) for w in plan.workspaces] == [("t", 0), ("w", 1), ("w", 1)]


def test_an_empty_launch_is_left_out() -> None:
    assert plan_call(library(), "add_one", vectors(0), {}).launches == ()


def test_loops_count_from_their_start() -> None:
    plan = plan_call(with_statements(Loop("i", 3, 4, (one("i"),))), "add_one", vectors(1), {})
    assert scalars(plan) == [3, 4, 5, 6]


def test_a_loop_of_negative_extent_does_not_run() -> None:
    plan = plan_call(with_statements(Loop("i", 0, -2, (one("i"),))), "add_one", vectors(1), {})
    assert plan.launches == ()


def test_conditions_choose_a_branch() -> None:
    branch = Condition(("lt", "n", 5), (one(1),), (one(2),))
    for length, expected in ((4, [1]), (5, [2])):
        plan = plan_call(with_statements(branch), "add_one", vectors(length), {})
        assert scalars(plan) == expected


def test_a_bound_symbol_is_visible_to_later_statements() -> None:
    plan = plan_call(
        with_statements(Bind("k", ("mul", "n", 2)), Bind("k", ("add", "k", 1)), one("k")),
        "add_one",
        vectors(5),
        {},
    )
    assert scalars(plan) == [11]


def test_a_symbol_bound_in_a_loop_ends_with_its_iteration() -> None:
    body = (one("k"), Bind("k", ("add", "k", 1)))
    plan = plan_call(
        with_statements(Bind("k", 7), Loop("i", 0, 3, body), one("k")), "add_one", vectors(1), {}
    )
    assert scalars(plan) == [7, 7, 7, 7]


def test_an_offset_leaves_the_rest_of_the_tensor() -> None:
    launch = Launch("add", (BufferArgument("a", ("mul", 4, 3)),))
    plan = plan_call(with_statements(launch), "add_one", vectors(10), {})
    assert plan.launches[0].arguments == (BufferSlot(0, 12, 28),)


def test_a_compound_extent_is_checked_once_its_symbols_are_known() -> None:
    parameters = (
        Parameter("a", (("mul", "n", 2),), "float32", "input"),
        Parameter("o", ("n",), "float32", "output"),
    )
    program = with_statements(one("n"), parameters=parameters)
    good = [TensorShape((8,), "float32"), TensorShape((4,), "float32")]
    assert scalars(plan_call(program, "add_one", good, {})) == [4]
    with pytest.raises(
        InputError, match=r"parameter 'a': expected shape \(mul\(n, 2\)\), got \(9,"
    ):
        plan_call(program, "add_one", [TensorShape((9,), "float32"), good[1]], {})


WRONG_CALLS: dict[str, tuple[Any, Any, Any, str]] = {
    "unknown name": ("nothing", vectors(1), {}, "no operator or entry 'nothing'; it has add_one"),
    "too few tensors": (
        "add_one",
        vectors(1)[:1],
        {},
        r"expected 2 tensors, got 1; .* a \(input\)",
    ),
    "wrong dtype": (
        "add_one",
        vectors(1, "float16"),
        {},
        "add_one: parameter 'a': expected dtype float32, got float16",
    ),
    "wrong rank": (
        "add_one",
        [TensorShape((1, 2), "float32"), vectors(1)[1]],
        {},
        r"parameter 'a': expected 1 dimensions \(n\), got 2: \(1, 2\)",
    ),
    "shapes that disagree": (
        "add_one",
        [vectors(3)[0], vectors(4)[1]],
        {},
        r"parameter 'o': expected shape \(n\), got \(4,\)",
    ),
    "negative extent": ("add_one", vectors(-1), {}, "negative extent"),
    "missing symbol": ("overrun", vectors(1), {}, "no value given for its symbol 'place'"),
    "unknown symbol": ("add_one", vectors(1), {"q": 1}, "takes no symbol 'q'"),
    "symbol a shape gives": ("add_one", vectors(1), {"n": 1}, "takes no symbol 'n'"),
    "scalar too large": (
        "overrun",
        vectors(1),
        {"place": 1 << 31},
        "kernel 'overrun': the scalar 2147483648 does not fit int32",
    ),
}


@pytest.mark.parametrize("case", WRONG_CALLS)
def test_a_wrong_call_is_named(case: str) -> None:
    name, tensors, symbols, message = WRONG_CALLS[case]
    with pytest.raises(InputError, match=message):
        plan_call(library(), name, tensors, symbols)


WRONG_STATEMENTS: dict[str, tuple[Statement, str]] = {
    "offset behind the end": (
        Launch("add", (BufferArgument("a", 44),)),
        "starts at byte 44 of 'a', which has 40",
    ),
    "window beyond the end": (
        Launch("add", (BufferArgument("a", 4, 40),)),
        "takes bytes 4 to 44 of 'a', which has 40",
    ),
    "window of less than nothing": (
        Launch("add", (BufferArgument("a", 4, ("sub", 0, "n")),)),
        "takes bytes 4 to -6 of 'a'",
    ),
    "offset before the start": (Launch("add", (BufferArgument("a", -4),)), "starts at byte -4"),
    "negative grid": (Launch("add", (), (-1, 1, 1)), "cannot be launched"),
    "division by zero": (one(("floordiv", 1, ("sub", "n", "n"))), "division by zero"),
    "endless loop": (Loop("i", 0, 1 << 40, ()), f"more than {MAX_STATEMENTS} statements"),
    "endless growth": (
        Loop("i", 0, 1, (Bind("k", ("shift_left", 1, 62)), Bind("k", ("mul", "k", "k")))),
        "exceeds 64 bits",
    ),
}


@pytest.mark.parametrize("case", WRONG_STATEMENTS)
def test_a_program_that_goes_wrong_is_stopped(case: str) -> None:
    statement, message = WRONG_STATEMENTS[case]
    with pytest.raises(InputError, match=message):
        plan_call(with_statements(statement), "add_one", vectors(10), {})


def test_a_value_outside_its_storage_is_refused() -> None:
    entry = library().entries["chain"]
    values = (entry.values[0], EntryValue("middle", "t", 8, ("n",), "float32"), entry.values[2])
    program = replace(library(), entries={"chain": structs.replace(entry, values=values)})
    with pytest.raises(InputError, match="value 'middle' takes bytes 8 to 48 of 't', which has 40"):
        plan_call(program, "chain", vectors(10), {})
