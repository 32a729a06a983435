"""A limit is broken on the host, by name, before a byte is sent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from tapml.compiler.preflight import Problem, check, require
from tapml.compiler.symbol_ranges import SymbolRanges
from tapml_targets.errors import LimitExceededError
from tapml_targets.library import (
    Bind,
    BufferArgument,
    CodeModule,
    Condition,
    EntryProgram,
    EntryStorage,
    EntryValue,
    Kernel,
    Launch,
    Library,
    Loop,
    OperatorProgram,
    Parameter,
    Workspace,
)
from tapml_targets.limits import Limits

KERNEL = "kernel 'k' of operator 'o'"


def _library() -> Library:
    kernel = Kernel("k", "k", 0, 256, 4096, ("float16",))
    launch = Launch("k", (BufferArgument("x"), BufferArgument("w")), ("n", 1, 70000), (256, 1, 1))
    program = OperatorProgram(
        "o",
        (Parameter("x", ("n", 4), "float16", "inout"),),
        (Loop("i", 0, 3, (launch,)),),
        (Workspace("w", ("mul", 100, "n")),),
    )
    return Library("opencl", (CodeModule("opencl-c", b""),), {"k": kernel}, {"o": program})


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"max_threads_per_block": 128}, Problem(KERNEL, "max_threads_per_block", "256", "128")),
        (
            {"max_shared_memory_bytes": 1024},
            Problem(KERNEL, "max_shared_memory_bytes", "4096", "1024"),
        ),
        ({"max_arguments": 1}, Problem(KERNEL, "max_arguments", "2", "1")),
        ({"max_block": (64, 64, 64)}, Problem(KERNEL, "max_block.x", "256", "64")),
        ({"max_grid": (0, 0, 65535)}, Problem(KERNEL, "max_grid.z", "70000", "65535")),
    ],
)
def test_a_broken_limit_is_named_with_what_is_needed_and_what_there_is(
    limits: dict[str, object], problem: Problem
) -> None:
    features = frozenset({"float16"})
    assert check(_library(), Limits(features=features, **limits)) == (problem,)  # type: ignore[arg-type]


def test_a_missing_feature_is_a_problem() -> None:
    (problem,) = check(_library(), Limits(features=frozenset({"float64"})))
    assert problem == Problem(KERNEL, "feature", "float16", "float64")


def test_sizes_count_where_the_symbols_are_known() -> None:
    limits = Limits(features=frozenset({"float16"}), max_buffer_bytes=1000, max_grid=(50, 0, 0))
    assert check(_library(), limits) == ()
    assert check(_library(), limits, {"n": 200}) == (
        Problem(KERNEL, "max_grid.x", "200", "50"),
        Problem("parameter 'x' of operator 'o'", "max_buffer_bytes", "1600", "1000"),
        Problem("workspace 'w' of operator 'o'", "max_buffer_bytes", "20000", "1000"),
    )


def test_the_sum_of_an_operators_memory_counts_too() -> None:
    limits = Limits(features=frozenset({"float16"}), memory_bytes=1000)
    (problem,) = check(_library(), limits, {"n": 10})
    assert problem == Problem("operator 'o'", "memory_bytes", "1080", "1000")


def test_an_entrys_intermediates_count_too() -> None:
    value = EntryValue("v", "scratch", 0, ("n",), "float16")
    entry = EntryProgram(
        "e", _library().operators["o"].parameters, (EntryStorage("scratch", 4096),), (value,), ()
    )
    limits = Limits(features=frozenset({"float16"}), max_buffer_bytes=2000)
    (problem,) = check(replace(_library(), entries={"e": entry}), limits)
    assert problem == Problem(
        "intermediate 'scratch' of entry 'e'", "max_buffer_bytes", "4096", "2000"
    )


def test_a_bound_of_zero_is_no_bound() -> None:
    assert check(_library(), Limits(features=frozenset({"float16"})), {"n": 1 << 40}) == ()


def test_require_says_all_at_once() -> None:
    with pytest.raises(LimitExceededError, match=r"256, the device has 128; .* feature float16"):
        require(_library(), Limits(max_threads_per_block=128))


def test_of_many_kernels_that_lack_a_feature_three_are_named() -> None:
    kernels = {name: Kernel(name, name, 0, 1, 0, ("float16",)) for name in "abcde"}
    programs = {name: OperatorProgram(name, (), (Launch(name, (), (1, 1, 1), (1, 1, 1)),))
                for name in kernels}  # fmt: skip
    library = Library("opencl", (CodeModule("opencl-c", b""),), kernels, programs)
    with pytest.raises(LimitExceededError) as raised:
        require(library, Limits(features=frozenset({"float64"})))
    named, more = str(raised.value).rsplit("; ", 1)
    assert [f"kernel {name!r}" in named for name in kernels] == [True, True, True, False, False]
    assert more == "and 2 more"


def test_a_weight_above_the_largest_buffer_is_named_with_what_helps() -> None:
    weight = Parameter("weight:embed", (389, 64), "float32", "input")
    entry = EntryProgram("decode", (weight,), (), (), ())
    library = replace(_library(), entries={"decode": entry})
    limits = Limits(features=frozenset({"float16"}), max_buffer_bytes=65536)
    with pytest.raises(LimitExceededError) as caught:
        require(library, limits)
    assert str(caught.value) == (
        "parameter 'weight:embed' of entry 'decode' needs max_buffer_bytes 99584, the device has "
        "65536; every tensor needs a single buffer, whatever the kernels: use float16, a smaller "
        "model or a device with larger buffers"
    )
    # As long as a kernel is all that is wrong, none of that is said.
    with pytest.raises(LimitExceededError) as caught:
        require(library, replace(limits, max_buffer_bytes=0, max_threads_per_block=1))
    assert "buffer" not in str(caught.value)


def test_a_need_of_the_longest_input_is_named_with_its_length() -> None:
    limits = Limits(features=frozenset({"float16"}), max_buffer_bytes=1000, max_grid=(50, 0, 0))
    ranges = SymbolRanges({"o": ({"n": 200}, {"n": 10}, {"n": 300})})
    problems = check(_library(), limits, ranges=ranges)
    assert problems[0] == Problem(KERNEL, "max_grid.x", "300", "50", "n = 300")
    assert len(problems) == 3
    with pytest.raises(LimitExceededError, match=r"max_grid.x 300 at n = 300, .*shorter inputs"):
        require(_library(), limits, ranges=ranges)


def test_what_is_always_needed_is_not_said_to_depend_on_the_length() -> None:
    ranges = SymbolRanges({"o": ({"n": 1},)})
    (problem,) = check(
        _library(),
        Limits(max_threads_per_block=128, features=frozenset({"float16"})),
        ranges=ranges,
    )
    assert problem.symbols == ""


def test_a_grid_computed_on_the_host_is_followed_and_a_branch_not_taken_is_not() -> None:
    library = _library()
    (loop,) = library.operators["o"].statements
    assert isinstance(loop, Loop)
    (launch,) = loop.body
    assert isinstance(launch, Launch)
    statements = (
        Bind("blocks", ("mul", "n", 2)),
        Condition(("gt", "n", 100), (structs.replace(launch, grid=("blocks", 1, 1)),), ()),
    )
    program = structs.replace(library.operators["o"], statements=statements)
    library = replace(library, operators={"o": program})
    limits = Limits(features=frozenset({"float16"}), max_grid=(50, 0, 0))
    assert check(library, limits, {"n": 90}) == ()
    assert check(library, limits, {"n": 110}) == (Problem(KERNEL, "max_grid.x", "220", "50"),)
