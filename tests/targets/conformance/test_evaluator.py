"""Libraries run on every device, and what they damage is seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from tapml_targets.conformance_kernels import kernel_table
from tapml_targets.driver import Driver, TensorUse
from tapml_targets.errors import CompileError, InputError, LimitExceededError
from tapml_targets.evaluator import LoadedLibrary
from tapml_targets.library import Launch, ModuleKind, ScalarArgument, with_launches
from tests.targets.conformance.devices import with_pointers
from tests.targets.libraries import Tensors, add_one, library


@pytest.fixture
def loaded(driver: Driver) -> Iterator[LoadedLibrary]:
    with LoadedLibrary(driver, library(driver.description.platform)) as loaded:
        yield loaded


def numbers(count: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.arange(count, dtype=np.float32)


def empty(count: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.zeros(count, np.float32)


def test_an_operator_writes_its_output_in_place(loaded: LoadedLibrary, driver: Driver) -> None:
    tensors = Tensors(driver)
    given, output = tensors.put(numbers(1000)), tensors.put(empty(1000))
    report = loaded.call("add_one", [given, output])
    assert report.launches == 1
    np.testing.assert_array_equal(tensors.get(output), numbers(1000) + 1)
    np.testing.assert_array_equal(tensors.get(given), numbers(1000))


def test_a_quotient_reaches_the_kernel_as_the_nearest_float(driver: Driver) -> None:
    of = library(driver.description.platform)
    operator = of.operators["add_one"]
    statements = with_launches(operator.statements, _by_three)
    of = replace(of, operators={"add_one": structs.replace(operator, statements=statements)})
    tensors = Tensors(driver)
    given, output = tensors.put(numbers(6)), tensors.put(empty(6))
    with LoadedLibrary(driver, replace(of, entries={})) as loaded:
        loaded.call("add_one", [given, output])
    third = np.float32(6) / np.float32(3 * 7)
    np.testing.assert_array_equal(tensors.get(output), numbers(6) + third)


def _by_three(launch: Launch) -> Launch:
    """The launch that adds n / 21 where it added one."""
    *others, _ = launch.arguments
    return structs.replace(launch, arguments=(*others, ScalarArgument("n", "float32", 21)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"subgroup_width": 96}, "subgroup_widths 96"),
        ({"features": ("telepathy",)}, "telepathy"),
    ],
)
@with_pointers
def test_a_kernel_that_needs_what_the_device_lacks_is_refused(
    driver: Driver, change: dict[str, Any], words: str
) -> None:
    of = library(driver.description.platform)
    kernels = {name: structs.replace(each, **change) for name, each in of.kernels.items()}
    with pytest.raises(LimitExceededError, match=words):
        LoadedLibrary(driver, replace(of, kernels=kernels))


def test_code_of_another_architecture_is_refused(driver: Driver) -> None:
    of = library(driver.description.platform)
    modules = tuple(replace(each, architecture="z80") for each in of.modules)
    with pytest.raises(LimitExceededError, match="architecture z80"):
        LoadedLibrary(driver, replace(of, modules=modules))


def test_a_module_that_lies_about_its_kind_is_refused(driver: Driver) -> None:
    of = library(driver.description.platform)
    kinds: dict[ModuleKind, ModuleKind] = {"source": "machine", "machine": "source"}
    modules = tuple(replace(each, kind=kinds[each.kind]) for each in of.modules)
    with pytest.raises(CompileError, match=f"says that it is {modules[0].kind} code"):
        LoadedLibrary(driver, replace(of, modules=modules))


def test_an_entry_runs_its_calls_in_order(loaded: LoadedLibrary, driver: Driver) -> None:
    tensors = Tensors(driver)
    given, output = tensors.put(numbers(77)), tensors.put(empty(77))
    assert loaded.call("chain", [given, output]).launches == 3
    np.testing.assert_array_equal(tensors.get(output), 2 * numbers(77) + 2)


def test_a_second_call_with_other_memory_uses_that_memory(
    loaded: LoadedLibrary, driver: Driver
) -> None:
    tensors = Tensors(driver)
    for start in range(8):
        given, output = tensors.put(numbers(50) + start), tensors.put(empty(50))
        loaded.call("double_add", [given, output])
        np.testing.assert_array_equal(tensors.get(output), 2 * (numbers(50) + start) + 1)


def test_calls_of_growing_and_shrinking_size_share_workspaces(
    loaded: LoadedLibrary, driver: Driver
) -> None:
    tensors = Tensors(driver)
    uses = {n: [tensors.put(numbers(n)), tensors.put(empty(n))] for n in (10, 5000, 64, 9000)}
    for n in (10, 5000, 10, 64, 9000, 5000, 10):
        driver.fill(uses[n][1].buffer, 0, 4 * n, b"\0")
        loaded.call("double_add", uses[n])
        np.testing.assert_array_equal(tensors.get(uses[n][1]), 2 * numbers(n) + 1)


def test_released_workspaces_come_back_with_the_next_call(
    loaded: LoadedLibrary, driver: Driver
) -> None:
    tensors = Tensors(driver)
    given, output = tensors.put(numbers(300)), tensors.put(empty(300))
    for _ in range(3):
        driver.fill(output.buffer, 0, 1200, b"\0")
        loaded.call("double_add", [given, output])
        np.testing.assert_array_equal(tensors.get(output), 2 * numbers(300) + 1)
        loaded.release_workspaces()


@pytest.mark.parametrize("before", [64, 128, 4096])
def test_tensors_may_start_at_a_cache_line(
    loaded: LoadedLibrary, driver: Driver, before: int
) -> None:
    check_tensors_behind(before, loaded, driver)


@with_pointers
@pytest.mark.parametrize("before", [4, 8, 12, 132])
def test_tensors_may_start_at_any_element(
    loaded: LoadedLibrary, driver: Driver, before: int
) -> None:
    check_tensors_behind(before, loaded, driver)


def check_tensors_behind(before: int, loaded: LoadedLibrary, driver: Driver) -> None:
    """Tensors behind so many bytes are computed, and what lies around them is left alone."""
    tensors = Tensors(driver)
    given = tensors.put(numbers(33), before, 20)
    output = tensors.put(empty(33), before, 20)
    driver.fill(output.buffer, 0, before, b"\xab")
    driver.fill(output.buffer, before + 132, 20, b"\xab")
    for _ in range(2):
        loaded.call("double_add", [given, output])
        np.testing.assert_array_equal(tensors.get(output), 2 * numbers(33) + 1)
    assert bytes(driver.read(output.buffer, 0, before)) == b"\xab" * before
    assert bytes(driver.read(output.buffer, before + 132, 20)) == b"\xab" * 20


def test_input_and_output_may_be_one_tensor(loaded: LoadedLibrary, driver: Driver) -> None:
    tensors = Tensors(driver)
    both = tensors.put(numbers(9))
    loaded.call("add_one", [both, both])
    loaded.call("add_one", [both, both])
    np.testing.assert_array_equal(tensors.get(both), numbers(9) + 2)


def test_tensors_without_elements_are_no_fault(loaded: LoadedLibrary, driver: Driver) -> None:
    tensors = Tensors(driver)
    loaded.call("chain", [tensors.put(empty(0)), tensors.put(empty(0))], workspace_poison=b"\xff")
    driver.finish()


@with_pointers
@pytest.mark.parametrize("where", [10, 10 + 1000])
def test_a_kernel_that_writes_behind_its_workspace_is_reported(
    loaded: LoadedLibrary, driver: Driver, where: int
) -> None:
    tensors = Tensors(driver)
    uses = [tensors.put(numbers(10)), tensors.put(empty(10))]
    report = loaded.call("overrun", uses, {"place": where}, workspace_poison=b"\xff")
    assert report.damaged_guards == ("w",)


@with_pointers
def test_a_write_behind_an_output_damages_what_is_there(
    loaded: LoadedLibrary, driver: Driver
) -> None:
    """Also where a platform holds a kernel to what is bound: the guard band is bound as well."""
    guard = 4096
    tensors = Tensors(driver)
    given, output = tensors.put(numbers(100)), tensors.put(empty(100), guard, guard)
    for where, damaged in ((99, False), (100, True)):
        driver.fill(output.buffer, guard + 400, guard, b"\xcd")
        loaded.call("overrun_output", [given, output], {"place": where}, workspace_poison=b"\xff")
        behind = bytes(driver.read(output.buffer, guard + 400, guard))
        assert (behind != b"\xcd" * guard) == damaged


@with_pointers
def test_a_kernel_that_stays_inside_is_not_reported(loaded: LoadedLibrary, driver: Driver) -> None:
    tensors = Tensors(driver)
    uses = [tensors.put(numbers(10)), tensors.put(empty(10))]
    report = loaded.call("overrun", uses, {"place": 9}, workspace_poison=b"\xff")
    assert report.damaged_guards == ()
    expected = numbers(10)
    expected[9] = 13
    np.testing.assert_array_equal(tensors.get(uses[1]), expected)


@with_pointers
@pytest.mark.parametrize("poison", [b"\xff", b"\x7f\xc0\x01\x02", b"\x11\x22\x33"])
def test_poison_is_what_an_unwritten_workspace_holds(
    loaded: LoadedLibrary, driver: Driver, poison: bytes
) -> None:
    tensors = Tensors(driver)
    uses = [tensors.put(numbers(21)), tensors.put(empty(21))]
    loaded.call("peek", uses, workspace_poison=poison)
    found = bytes(driver.read(uses[1].buffer, 0, 84))
    assert found == (poison * 84)[:84]


def test_an_entry_can_be_poisoned(loaded: LoadedLibrary, driver: Driver) -> None:
    tensors = Tensors(driver)
    uses = [tensors.put(numbers(70)), tensors.put(empty(70))]
    report = loaded.call("chain", uses, workspace_poison=b"\xff")
    assert report.damaged_guards == ()
    np.testing.assert_array_equal(tensors.get(uses[1]), 2 * numbers(70) + 2)


def test_a_timed_call_says_how_long_its_kernels_ran(loaded: LoadedLibrary, driver: Driver) -> None:
    tensors = Tensors(driver)
    uses = [tensors.put(numbers(1 << 20)), tensors.put(empty(1 << 20))]
    report = loaded.call("chain", uses, timed=True)
    driver.finish()
    assert report.kernel_nanoseconds is not None
    assert 10_000 < report.kernel_nanoseconds() < 10_000_000_000


def test_a_window_outside_its_buffer_is_refused(loaded: LoadedLibrary, driver: Driver) -> None:
    tensors = Tensors(driver)
    given, output = tensors.put(numbers(10)), tensors.put(empty(10))
    beyond = TensorUse(output.buffer, 4, (10,), "float32")
    with pytest.raises(InputError, match="add_one: parameter 'o': a tensor of 40 bytes at byte 4"):
        loaded.call("add_one", [given, beyond])
    crooked = TensorUse(output.buffer, 2, (9,), "float32")
    with pytest.raises(InputError, match="start at a multiple of 4"):
        loaded.call("add_one", [TensorUse(given.buffer, 0, (9,), "float32"), crooked])


def test_a_wrong_call_leaves_the_library_usable(loaded: LoadedLibrary, driver: Driver) -> None:
    tensors = Tensors(driver)
    given, output = tensors.put(numbers(10)), tensors.put(empty(10))
    with pytest.raises(InputError):
        loaded.call("add_one", [given])
    loaded.call("add_one", [given, output])
    np.testing.assert_array_equal(tensors.get(output), numbers(10) + 1)


def test_a_recorded_call_reads_what_is_there_when_it_runs(
    loaded: LoadedLibrary, driver: Driver
) -> None:
    tensors = Tensors(driver)
    given, output = tensors.put(numbers(1000)), tensors.put(empty(1000))
    recorded = loaded.record("double_add", [given, output])
    for turn in range(3):
        driver.write(given.buffer, 0, memoryview((numbers(1000) + turn).tobytes()))
        loaded.run(recorded)
        np.testing.assert_array_equal(tensors.get(output), 2 * (numbers(1000) + turn) + 1)


@with_pointers
def test_a_block_beyond_the_device_is_refused_before_the_launch(driver: Driver) -> None:
    most = driver.description.limits.max_threads_per_block
    platform = driver.description.platform
    operator = add_one(platform)
    (launch,) = operator.statements
    assert isinstance(launch, Launch)
    large = structs.replace(operator, statements=(structs.replace(launch, block=(most + 1, 1, 1)),))
    tensors = Tensors(driver)
    uses = [tensors.put(numbers(10)), tensors.put(empty(10))]
    with LoadedLibrary(
        driver, replace(library(platform), operators={"add_one": large}, entries={})
    ) as loaded:
        refused = pytest.raises(LimitExceededError, match=f"needs {most + 1} threads per block")
        with refused:
            loaded.call("add_one", uses)


def test_a_module_that_does_not_build_shows_the_compilers_words(driver: Driver) -> None:
    platform = driver.description.platform
    table, original = kernel_table(platform), library(platform)
    modules = (table.broken(original.modules[0]), *original.modules[1:])
    with pytest.raises(CompileError, match=table.BROKEN):
        LoadedLibrary(driver, replace(original, modules=modules))


def test_a_kernel_the_module_lacks_is_named(driver: Driver) -> None:
    original = library(driver.description.platform)
    kernels = original.kernels | {
        "add": structs.replace(original.kernels["add"], symbol="not_there")
    }
    with pytest.raises(CompileError, match="'not_there'"):
        LoadedLibrary(driver, replace(original, kernels=kernels))


def test_a_feature_the_device_lacks_is_named(driver: Driver) -> None:
    original = library(driver.description.platform)
    kernels = original.kernels | {
        "add": structs.replace(original.kernels["add"], features=("telepathy",))
    }
    with pytest.raises(LimitExceededError, match="'add' needs telepathy"):
        LoadedLibrary(driver, replace(original, kernels=kernels))
