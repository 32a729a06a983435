"""A merged entry does what the entry did, with fewer launches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tapml.compiler.link import link_entries
from tapml.compiler.merged_launches import launch_counts
from tapml.compiler.merged_operator import MAX_LOCAL_BYTES
from tapml.compiler.preflight import check
from tapml.compiler.reach import Reach
from tapml.compiler.single_launch import single_launch
from tapml_targets.call_plan import CallPlan, TensorShape, plan_call
from tapml_targets.driver import Driver
from tapml_targets.library import Library, Loop
from tapml_targets.library_check import check_library
from tapml_targets.library_format import pack, unpack
from tapml_targets.limits import Limits
from tapml_targets.opencl.driver import open_device
from tests.compiler.independent_launches import (
    ADD,
    FOLD,
    LIBRARIES,
    SHIFT,
    SOME_THREADS,
    Steps,
    arrays_of,
    library_of,
    steps,
)
from tests.compiler.operators import run
from tests.conftest import RequireDevice


@pytest.fixture(
    scope="module", params=["Portable Computing Language", "Intel"], ids=["pocl", "intel"]
)
def driver(request: pytest.FixtureRequest, require_device: RequireDevice) -> Iterator[Driver]:
    opened = open_device(require_device("opencl", vendor=request.param)[0])
    yield opened
    opened.close()


def _counts(made: Steps, libraries: dict[str, Library] = LIBRARIES) -> tuple[int, int]:
    apart, merged = (link_entries(made.plan(), libraries, merge=each) for each in (False, True))
    return launch_counts(apart)["run"], launch_counts(merged)["run"]


def _plan(made: Steps, library: Library, rows: int) -> CallPlan:
    arrays = arrays_of(library, rows, made.rows)
    shapes = [TensorShape(each.shape, "float32") for each in arrays]
    symbols = dict.fromkeys(library.entries["run"].symbols, rows)
    return plan_call(library, "run", shapes, symbols)


def _same_bytes(
    driver: Driver, made: Steps, rows: int, libraries: dict[str, Library] = LIBRARIES
) -> tuple[int, int]:
    apart, merged = (link_entries(made.plan(), libraries, merge=each) for each in (False, True))
    check_library(merged)
    assert unpack(pack(merged)) == merged
    symbols = dict.fromkeys(merged.entries["run"].symbols, rows)
    first, second = (
        run(driver, library, "run", arrays_of(library, rows, made.rows), symbols)
        for library in (apart, merged)
    )
    for one, other, parameter in zip(first, second, merged.entries["run"].parameters, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=parameter.name)
    return len(_plan(made, apart, rows).launches), len(_plan(made, merged, rows).launches)


def test_launches_that_read_one_tensor_become_one(driver: Driver) -> None:
    made = Steps(kept=("a", "b", "c"))
    made.call("shift", "x", "a")
    made.call("turn", "x", "b")
    made.call("shift", "x", "c")
    assert _same_bytes(driver, made, 5) == (3, 1)
    merged = link_entries(made.plan(), LIBRARIES, merge=True)
    (launch,) = _plan(made, merged, 5).launches
    assert launch.kernel == "shift + shift + turn"
    assert launch.grid == (21, 1, 1)
    # x is passed once; the rows of each part are known at the call alone.
    assert len(launch.arguments) == 1 + 3 + 1 + 2
    assert list(merged.operators) == ["shift + shift + turn"]


def test_a_part_without_rows_is_left_out(driver: Driver) -> None:
    made = Steps(kept=("a", "b"))
    made.call("turn", "x:1", "a:1")
    made.call("shift", "x:0", "b:0")
    assert _same_bytes(driver, made, 0) == (1, 1)
    assert _same_bytes(driver, made, 3) == (2, 1)


def test_bodies_without_a_barrier_stand_beside_one_that_has_one(driver: Driver) -> None:
    """One group each: the driver's compiler makes one choice of them all, where PoCL 7 aborted."""
    made = Steps(kept=("a", "b", "c"), rows=1)
    made.call("rise", "x:0", "a:0")
    made.call("fall", "x:0", "b:0")
    made.call("fold", "x:0", "c:0")
    libraries = {
        "rise": library_of("rise", SOME_THREADS.format(name="rise", what="exp"), 1),
        "fall": library_of("fall", SOME_THREADS.format(name="fall", what="cos"), 1),
        "fold": library_of("fold", FOLD, 1),
    }
    assert _same_bytes(driver, made, 3, libraries) == (3, 1)


@pytest.mark.slow
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps(), st.integers(0, 3))
def test_any_entry_leaves_the_bytes_it_left_before(driver: Driver, made: Steps, rows: int) -> None:
    apart, merged = _same_bytes(driver, made, rows)
    assert merged <= apart


@settings(max_examples=60, deadline=None)
@given(steps())
def test_no_two_parts_of_a_launch_touch_what_one_of_them_writes(made: Steps) -> None:
    merged = link_entries(made.plan(), LIBRARIES, merge=True)
    roles = {
        name: [parameter.role for parameter in program.parameters]
        for name, program in merged.operators.items()
    }
    home = {value.name: value.storage for value in merged.entries["run"].values}
    for call in merged.entries["run"].calls:
        written = [
            home[name]
            for name, role in zip(call.arguments, roles[call.operator], strict=True)
            if role != "input"
        ]
        everything = [home[name] for name in call.arguments]
        assert all(everything.count(storage) == 1 for storage in written)


def test_two_windows_on_one_tensor_stay_apart_where_one_is_written() -> None:
    made = Steps(kept=("a",))
    made.call("shift", "x:0", "a:0")
    made.call("shift", "x:1", "a:1")
    assert _counts(made) == (2, 2)


def test_windows_that_may_overlap_are_not_given_to_one_launch() -> None:
    made = Steps(kept=("a", "b"))
    made.call("shift", "x", "a")
    made.call("shift", "x:1", "b:1")
    assert _counts(made) == (2, 2)
    apart = Steps(kept=("a", "b"))
    apart.call("shift", "x:0", "a:0")
    apart.call("turn", "x:0", "b:0")
    assert _counts(apart) == (2, 1)


def test_the_old_and_the_new_value_of_a_state_are_one_memory() -> None:
    made = Steps(kept=("a",), state=True)
    made.call("shift", "memory", "memory.new")
    made.call("turn", "memory", "a:0")
    assert _counts(made) == (2, 2)


def _pair(*libraries: Library) -> tuple[int, int]:
    """Launches before and after of operators ``one`` and ``other`` that could be one launch."""
    made = Steps(kept=("a", "b"))
    made.call("one", "x", "a")
    made.call("other", "x", "b")
    names = ("one", "other")
    named = {
        name: replace(
            library, operators={name: replace(next(iter(library.operators.values())), name=name)}
        )
        for name, library in zip(names, libraries, strict=True)
    }
    return _counts(made, named)


def test_what_a_kernel_has_once_must_agree() -> None:
    plain = library_of("shift", SHIFT, 1)
    assert _pair(plain, plain) == (2, 1)
    assert _pair(plain, library_of("shift", SHIFT, 1, options=("fast-math",))) == (2, 2)
    assert _pair(plain, library_of("shift", SHIFT, 1, block=(4, 2, 1))) == (2, 2)
    assert _pair(plain, library_of("shift", SHIFT, 1, block=("m", 1, 1))) == (2, 2)
    assert _pair(plain, library_of("shift", "#pragma OPENCL FP_CONTRACT OFF\n" + SHIFT, 1)) == (
        2,
        2,
    )
    # Along another axis, as long as it is the only one they differ in.
    wide = library_of("shift", SHIFT.replace("get_group_id(0)", "get_group_id(1)"), 1,
                      grid=(1, "m", 1))  # fmt: skip
    assert _pair(wide, wide) == (2, 1)
    assert _pair(plain, wide) == (2, 2)


def test_local_memory_and_arguments_are_bounded() -> None:
    half = f"__local float most[{MAX_LOCAL_BYTES // 8 + 32}];"
    first, second = (
        library_of("shift", SHIFT.replace("  int i", f"  {half}\n  int {name} = 0;\n  int i"), 1)
        for name in ("one", "two")
    )
    assert _pair(first, second) == (2, 2)
    assert _pair(first, first) == (2, 1)
    made = Steps(kept=[f"o{n}" for n in range(40)])
    for name in made.kept:
        made.call("shift", "x:0", f"{name}:0")
    # 31 outputs and the one input they share are 32 arguments.
    assert _counts(made) == (40, 2)


def test_a_helper_or_a_second_statement_leaves_an_operator_alone() -> None:
    plain = library_of("shift", SHIFT, 1)
    helper = library_of("shift", "float half_of(float x) { return 0.5f * x; }\n" + SHIFT, 1)
    assert single_launch(plain, "shift") is not None
    assert single_launch(helper, "shift") is None
    program = plain.operators["shift"]
    looped = replace(program, statements=(Loop("i", 0, 2, program.statements),))
    twice = replace(program, statements=program.statements * 2)
    for other in (looped, twice):
        assert single_launch(replace(plain, operators={"shift": other}), "shift") is None
    machine_code = replace(plain.modules[0], dialect="elf-shared-object")
    assert single_launch(replace(plain, modules=(machine_code,)), "shift") is None
    assert _pair(helper, helper) == (2, 2)


def test_a_hand_written_kernel_in_plain_text_joins_a_compiled_one() -> None:
    assert _pair(library_of("shift", SHIFT, 1), library_of("add", ADD.replace(
        "__global float* restrict b,\n                         ", "").replace("b[i]", "a[i]"), 1)
    ) == (2, 1)  # fmt: skip


def test_layers_share_their_merged_kernels() -> None:
    made = Steps(kept=("a", "b", "c", "d"))
    made.call("shift", "x", "a")
    made.call("turn", "x", "b")
    made.call("shift", "a", "c")
    made.call("turn", "a", "d")
    merged = link_entries(made.plan(), LIBRARIES, merge=True)
    # The second pair reads what the first one wrote; it is the same operator again.
    calls = [call.operator for call in merged.entries["run"].calls]
    assert calls == ["shift + turn"] * 2
    assert len(merged.modules) == len(merged.kernels) == 1


def test_a_merged_kernel_is_named_with_all_its_operators_where_a_limit_is_broken() -> None:
    made = Steps(kept=("a", "b"))
    made.call("shift", "x", "a")
    made.call("turn", "x", "b")
    merged = link_entries(made.plan(), LIBRARIES, merge=True)
    limits = Limits(max_arguments=2)
    (problem,) = check(merged, limits)
    assert "kernel 'shift + turn' of operator 'shift + turn' needs max_arguments" in str(problem)
    # No plan knows it, its entry's longest input does.
    longest = Reach(entries={"run": {"S": 62}})
    (problem,) = check(merged, Limits(max_grid=(100, 0, 0)), reach=longest)
    assert "needs max_grid.x 128 at S = 62, the device has 100" in str(problem)
    assert check(merged, Limits(max_grid=(128, 0, 0)), reach=longest) == ()
