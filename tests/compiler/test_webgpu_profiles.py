"""Limit profiles: a phone's limits, compiled for and held to on another device."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tvm import te, tirx

from tapml.compiler.preflight import Problem, check
from tapml.compiler.symbol_ranges import SymbolRanges
from tapml.plan.graph_plan import Operator
from tapml_targets import webgpu
from tapml_targets.errors import InputError
from tapml_targets.limit_profiles import load_profile, profile_names
from tapml_targets.limits import Limits
from tapml_targets.target import Target
from tests.compiler.operators import matmul_transposed, operator, scale, softmax
from tests.compiler.webgpu_operators import compiled

PHONES = ("adreno", "apple", "mali")
PROFILES = ("chromium-desktop", "webgpu-default", *PHONES)
DESKTOP = Limits(
    max_threads_per_block=1024,
    max_block=(1024, 1024, 1024),
    max_grid=((1 << 31) - 1, 65535, 65535),
    max_shared_memory_bytes=32768,
    max_buffer_bytes=2 << 30,
    memory_bytes=8 << 30,
    features=frozenset({"float16", "subgroups"}),
    max_binding_bytes=2 << 30,
    max_storage_buffers=32,
    offset_alignment=32,
)


def sum_of(count: int) -> Operator:
    """A sum of `count` vectors: one kernel with `count` + 1 buffers."""
    rows = tirx.Var("n", "int64")
    given = [te.placeholder((rows,), "float32", name=f"given_{index}") for index in range(count)]
    total = te.compute((rows,), lambda i: sum((each[i] for each in given[1:]), given[0][i]), "sum")
    return operator("sum_of", te.create_prim_func([*given, total]))


def test_the_platform_brings_these_profiles() -> None:
    assert profile_names("webgpu") == tuple(sorted(PROFILES))
    assert profile_names("cpu") == ()


@pytest.mark.parametrize("name", PROFILES)
def test_every_number_of_a_profile_says_where_it_comes_from(name: str) -> None:
    text = (Path(webgpu.__file__).parent / "profiles" / f"{name}.toml").read_text()
    numbers = [line for line in text.partition("[limits]")[2].splitlines() if "=" in line]
    assert len(numbers) >= 8
    assert all(re.search(r"\S  # \S", line) for line in numbers), numbers
    assert "https://" in text
    assert load_profile("webgpu", name).description


@pytest.mark.parametrize("name", PROFILES)
def test_no_profile_is_below_what_the_specification_guarantees(name: str) -> None:
    least = load_profile("webgpu", "webgpu-default").limits
    limits = load_profile("webgpu", name).limits
    assert limits.max_threads_per_block >= least.max_threads_per_block
    assert limits.max_shared_memory_bytes >= least.max_shared_memory_bytes
    assert limits.max_binding_bytes >= least.max_binding_bytes
    assert limits.max_storage_buffers >= least.max_storage_buffers
    assert limits.offset_alignment <= least.offset_alignment


def test_the_smaller_of_device_and_profile_counts() -> None:
    small = Limits(max_threads_per_block=128, max_shared_memory_bytes=8192, features=frozenset())
    limits = load_profile("webgpu", "mali").within(small)
    assert limits.max_threads_per_block == 128
    assert limits.max_shared_memory_bytes == 8192
    assert limits.max_binding_bytes == 128 << 20
    limits = load_profile("webgpu", "mali").within(DESKTOP)
    assert limits.max_threads_per_block == 256
    assert limits.max_block == (256, 256, 64)
    assert limits.max_grid == DESKTOP.max_grid
    assert limits.memory_bytes == DESKTOP.memory_bytes
    assert limits.offset_alignment == 256
    assert limits.features == frozenset()


def test_a_profile_can_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "my-board.toml"
    path.write_text('description = "mine"\n[limits]\nmax_threads_per_block = 64\n')
    profile = load_profile("webgpu", str(path))
    assert (profile.name, profile.description) == ("my-board", "mine")
    limits = profile.within(DESKTOP)
    assert limits.max_threads_per_block == 64
    assert limits.features == DESKTOP.features


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[limits]\nmax_threads = 3", "there is no limit 'max_threads'; there are max_threads_per"),
        (
            "[limits]\nmax_binding_bytes = -1",
            "`int` >= 0 - at `..max_binding_bytes`",
        ),
        ("[limits]\nmax_binding_bytes = true", "a whole number.*`bool` - at `..max_binding_bytes`"),
        ("[limits]\nmax_block = [1, 2]", "or a list of them.*length 3, got 2 - at `..max_block`"),
        ('[limits]\nfeatures = "float16"', "a list of names.*got `str` - at `..features`"),
        ("[limit]", "unexpected 'limit'"),
        ("description = 1", "no table `limits`"),
        ("[limits", "cannot be read"),
    ],
)
def test_other_files_are_refused_as_a_profile(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "odd.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        load_profile("webgpu", str(path))


def test_a_profile_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(InputError, match=r"no limit profile 'nokia' of webgpu; known .*adreno"):
        load_profile("webgpu", "nokia")
    with pytest.raises(InputError, match="known profiles: none"):
        load_profile("cpu", "mali")
    with pytest.raises(InputError, match=r"no file of a limit profile at my-board\.toml"):
        load_profile("webgpu", "my-board.toml")


@pytest.mark.parametrize("name", PHONES)
def test_kernels_made_for_a_phone_fit_it(name: str) -> None:
    limits = load_profile("webgpu", name).within(DESKTOP)
    for of in (softmax(), matmul_transposed(), scale(), sum_of(7)):
        library = compiled(of, Target("webgpu", limits=limits))
        assert check(library, limits, {"n": 256}) == (), of.name


def test_a_kernel_of_more_buffers_than_a_phone_binds_is_named() -> None:
    limits = load_profile("webgpu", "mali").within(DESKTOP)
    (problem,) = check(compiled(sum_of(9)), limits)
    assert problem == Problem(
        "kernel 'sum_of_kernel' of operator 'sum_of'", "max_storage_buffers", "10", "8"
    )
    assert check(compiled(sum_of(9)), DESKTOP) == ()


def test_a_binding_of_more_than_128_megabytes_is_named_with_its_length() -> None:
    """The paper's case: a phone answers it with "Invalid BindGroup" and no word about why."""
    limits = load_profile("webgpu", "adreno").within(DESKTOP)
    rows = (128 << 20) // 32 + 1
    problems = check(compiled(scale()), limits, ranges=SymbolRanges({"scale": ({"n": rows},)}))
    assert [str(problem) for problem in problems] == [
        f"parameter {name!r} in kernel 'scale_kernel' of operator 'scale' needs max_binding_bytes "
        f"134217760 at n = {rows}, the device has 134217728"
        for name in ("p0", "p1")
    ]
    assert check(compiled(scale()), limits, {"n": rows - 1}) == ()


def test_half_precision_for_a_device_without_it_is_named() -> None:
    limits = load_profile("webgpu", "webgpu-default").within(DESKTOP)
    (problem,) = check(compiled(scale(dtype="float16")), limits)
    assert str(problem).endswith(
        "needs feature float16, the device has none of the optional features"
    )
