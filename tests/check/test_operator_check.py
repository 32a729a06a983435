"""Faults planted in kernels are named with operator, kernel and source line; right ones are not."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from tapml.check.checker import Checker, open_checker
from tapml.check.operator_check import check_operator, check_tests
from tapml.compiler.reference import compile_reference
from tapml.plan.graph_plan import Operator, Origin
from tapml_targets.errors import RemoteError
from tapml_targets.library import (
    BufferArgument,
    CodeModule,
    Kernel,
    Launch,
    Library,
    OperatorProgram,
    Parameter,
    ScalarArgument,
)
from tests.check.planted import PLANTS, planted_library
from tests.conftest import RequireDevice
from tests.oracles.cases import Array, MemoryCase
from tests.replaying.replay_kernels import (
    linear_case,
    linear_library,
    linear_operator,
    with_store,
    workspace_library,
)


@pytest.fixture(scope="module")
def operator() -> Operator:
    return linear_operator()


@pytest.fixture(scope="module")
def case(operator: Operator) -> MemoryCase:
    return linear_case(operator, compile_reference([operator]))


def line_of(library: Library, text: str) -> int:
    """The number of the one line that holds `text`."""
    lines = library.modules[0].code.decode().split("\n")
    (number,) = (number for number, line in enumerate(lines, 1) if text in line)
    return number


def test_right_kernels_have_no_findings(
    operator: Operator, case: MemoryCase, checker: Checker
) -> None:
    for library in (linear_library(operator), workspace_library(operator, 0)):
        report = check_tests(operator, [case], library, checker)
        assert (report.status, report.findings, report.notes) == ("pass", (), ())
        assert report.checked == (case.id,)


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_named_at_its_line(
    name: str, operator: Operator, case: MemoryCase, checker: Checker
) -> None:
    plant, library = PLANTS[name], planted_library(operator, name)
    origin = Origin("model.layers.0", "model.py:7", "aten.mm.default", "mm")
    findings = check_operator(operator, [case], library, checker, origins=[origin])
    named = [each for each in findings if each.kind == plant.kind]
    assert named, [str(each) for each in findings]
    lines = {place.line for each in named for place in each.places}
    texts = [place.text for each in named for place in each.places]
    assert any(plant.line in text for text in texts), texts
    assert lines & {
        number
        for number, line in enumerate(library.modules[0].code.decode().split("\n"), 1)
        if plant.line in line
    }
    assert {(each.operator, each.test, each.kernel) for each in named} == {
        ("linear", case.id, "linear")
    }
    assert any(each.tensor == plant.tensor for each in named)
    assert all(each.origins == (origin,) for each in named)


def test_a_race_names_both_places_and_both_work_items(
    operator: Operator, case: MemoryCase, checker: Checker
) -> None:
    library = planted_library(operator, "missing barrier")
    race = next(
        each
        for each in check_operator(operator, [case], library, checker)
        if each.kind == "data race"
    )
    written, read = line_of(library, "s[t] = sum"), line_of(library, "s[t ^ 1]")
    assert {(place.access, place.line) for place in race.places} == {
        ("write", written),
        ("read", read),
    }
    assert len({place.work_item for place in race.places}) == 2
    assert race.address_space == "local"
    assert race.count > 100
    text = "\n".join(race.lines())
    assert f"reads at line {read}" in text
    assert f"writes at line {written}" in text
    assert ">" in text


def test_where_the_access_was_is_counted_from_the_tensors_first_byte(
    operator: Operator, case: MemoryCase, checker: Checker
) -> None:
    before = with_store(linear_library(operator), "out[i] = sum; if (i == 0) out[-3] = 1.0f;")
    (finding,) = check_operator(operator, [case], before, checker)
    assert (finding.tensor, finding.byte, finding.tensor_bytes) == ("p2", -12, 1680)
    assert "byte -12 of p2, which has 1680" in finding.what()


def test_what_changes_an_input_is_found(
    operator: Operator, case: MemoryCase, checker: Checker
) -> None:
    library = linear_library(operator)
    source = library.modules[0].code.replace(b"const float* w", b"float* w")
    changed = with_store(
        replace(library, modules=(CodeModule("opencl-c", source),)),
        "out[i] = sum; if (i == 419) w[3599] = 0.0f;",
    )
    kinds = {each.kind: each for each in check_operator(operator, [case], changed, checker)}
    assert kinds["input changed"].tensor == "p1"


def test_outputs_far_from_the_carved_ones_are_noted(
    operator: Operator, case: MemoryCase, checker: Checker
) -> None:
    report = check_tests(operator, [case], linear_library(operator, "transposed weight"), checker)
    assert report.status == "pass"
    assert "p2 differs by up to" in report.notes[0]


def test_a_wrong_kernel_does_not_silence_the_ones_after_it(
    operator: Operator, case: MemoryCase, checker: Checker
) -> None:
    """The simulator stops writing after so many messages; that is said, and it begins again."""
    wrong = planted_library(operator, "reads past an input")
    everywhere = with_store(
        wrong, "for (int k = 0; k < 20; ++k) sum += 0.0f * x[420 + k]; out[i] = sum;"
    )
    for _ in range(2):
        findings = check_operator(operator, [case], everywhere, checker)
        assert any(each.at_least and each.count > 1000 for each in findings)
        assert "at least" in findings[0].lines()[0]
    (finding,) = check_operator(
        operator, [case], planted_library(operator, "writes past the output"), checker
    )
    assert (finding.count, finding.at_least) == (1, False)


def test_a_kernel_that_does_not_end_is_not_run_and_the_next_one_is_checked(
    operator: Operator, case: MemoryCase
) -> None:
    endless = with_store(
        linear_library(operator), "while (sum != 1e30f) sum = sum + 1.0f; out[i] = sum;"
    )
    with open_checker("opencl", command_seconds=2) as own:
        report = check_tests(operator, [case], endless, own)
        assert (report.status, report.checked) == ("not run", ())
        assert "the simulator crashed" in report.not_run[0].reason
        with pytest.raises(RemoteError, match="linear was not checked"):
            check_operator(operator, [case], endless, own)
        assert check_operator(operator, [case], linear_library(operator), own) == ()


def test_a_simulator_that_died_is_said_so_and_replaced(
    operator: Operator, case: MemoryCase
) -> None:
    before = set(server_processes())
    with open_checker("opencl") as own:
        (process,) = set(server_processes()) - before
        os.kill(process, signal.SIGKILL)
        report = check_tests(operator, [case], linear_library(operator), own)
        assert report.status == "not run"
        assert "the simulator crashed" in report.not_run[0].reason
        assert check_operator(operator, [case], linear_library(operator), own) == ()


def copying(platform: str, count: int) -> tuple[Operator, Library]:
    """An operator that copies 64 of `count` numbers, for a platform with pointers."""
    entry = {
        "opencl": "__kernel void copy(__global const float* x, __global float* y, int n) {"
        " int i = get_global_id(0);",
        "cuda": 'extern "C" __global__ void copy(const float* x, float* y, int n) {'
        " int i = threadIdx.x;",
    }[platform]
    operator, library = copy_library(count, f"{entry} y[i] = x[i]; }}")
    dialect = {"opencl": "opencl-c", "cuda": "cuda-c"}[platform]
    modules = tuple(replace(each, dialect=dialect) for each in library.modules)
    return operator, replace(library, target=platform, modules=modules)


@pytest.mark.parametrize("platform", ["opencl", "cuda"])
def test_a_simulator_out_of_memory_is_told_of_its_operator_and_the_next_one_is_checked(
    platform: str, require_device: RequireDevice
) -> None:
    """It follows each byte in 48 of its own."""
    require_device(platform)
    x = np.arange(750_000, dtype=np.float32)
    before = set(server_processes())
    with open_checker(platform) as own:
        (process,) = set(server_processes()) - before
        pages = int(Path(f"/proc/{process}/statm").read_text("ascii").split()[0])
        most = pages * resource.getpagesize() + (48 << 20)
        resource.prlimit(process, resource.RLIMIT_AS, (most, most))
        operator, library = copying(platform, x.size)
        report = check_tests(operator, [copy_case(x, x[:64])], library, own)
        assert (report.status, report.findings) == ("not run", ())
        (missed,) = report.not_run
        assert missed.reason.startswith("the simulator ran out of memory: ")
        operator, library = copying(platform, 640)
        assert check_operator(operator, [copy_case(x[:640], x[:64])], library, own) == ()


def server_processes() -> list[int]:
    """Device servers that this process has started."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                command = (folder / "cmdline").read_bytes().split(b"\0")
                own = str(os.getpid()).encode()
                if b"tapml_rpc.supervisor.worker" in command and own in command:
                    found.append(int(folder.name))
    return found


def test_what_the_simulator_does_not_take_is_not_run_with_the_reason(
    operator: Operator, case: MemoryCase, checker: Checker
) -> None:
    library = linear_library(operator)
    broken = replace(library, modules=(CodeModule("opencl-c", b"__kernel void linear( {"),))
    kernel = structs.replace(library.kernels["linear"], features=("float16",))
    for given, reason in (
        (broken, "rejected its kernels"),
        (replace(library, kernels={"linear": kernel}), "needs float16"),
    ):
        report = check_tests(operator, [case], given, checker)
        assert (report.status, report.findings) == ("not run", ())
        assert reason in report.not_run[0].reason
    assert check_operator(operator, [case], library, checker) == ()


def test_a_launch_the_simulator_refuses_is_a_finding(
    operator: Operator, case: MemoryCase, checker: Checker
) -> None:
    library = linear_library(operator)
    (launch,) = library.operators["linear"].statements
    assert isinstance(launch, Launch)
    wide = structs.replace(launch, block=(1 << 20, 1, 1))
    program = structs.replace(library.operators["linear"], statements=(wide,))
    refused = replace(library, operators={"linear": program})
    (finding,) = check_operator(operator, [case], refused, checker)
    assert finding.kind == "launch refused"
    assert "threads per block" in finding.message


def copy_library(count: int, source: str) -> tuple[Operator, Library]:
    """An operator ``copy`` of `count` numbers whose kernel is `source`, in one work-group."""
    parameters = (
        Parameter("x", (count,), "float32", "input"),
        Parameter("y", (64,), "float32", "output"),
    )
    operator = replace(linear_operator(), name="copy", parameters=parameters)
    arguments = (BufferArgument("x"), BufferArgument("y"), ScalarArgument(8, "int32"))
    library = Library(
        "opencl",
        (CodeModule("opencl-c", source.encode()),),
        {"copy": Kernel("copy", "copy", 0)},
        {
            "copy": OperatorProgram(
                "copy", parameters, (Launch("copy", arguments, block=(64, 1, 1)),)
            )
        },
    )
    return operator, library


def copy_case(x: Array, y: Array) -> MemoryCase:
    return MemoryCase("copy@0", "copy", (x,), (y,), ("activation",))


def test_a_tensor_that_travels_in_pieces_counts_as_written(checker: Checker) -> None:
    count = 640_000
    x = np.arange(count, dtype=np.float32)
    operator, library = copy_library(
        count,
        "__kernel void copy(__global const float* x, __global float* y, int n) {"
        " int i = get_global_id(0); y[i] = x[i * 10000]; }",
    )
    report = check_tests(operator, [copy_case(x, x[::10000].copy())], library, checker)
    assert (report.status, report.findings, report.notes) == ("pass", (), ())


def test_tensors_beyond_the_simulators_memory_are_not_run(checker: Checker) -> None:
    x = np.zeros(5_000_000, np.float32)
    operator, library = copy_library(x.size, "__kernel void copy() {}")
    report = check_tests(operator, [copy_case(x, x[:64])], library, checker)
    assert report.status == "not run"
    assert report.not_run[0].reason.startswith("its tensors need 20 MB")


def test_what_the_simulators_optimiser_makes_unwatchable_is_checked_without_it(
    checker: Checker,
) -> None:
    """A quotient and a remainder by the same variable become an instruction it does not know."""
    operator, library = copy_library(
        64,
        "__kernel void copy(__global const float* x, __global float* y, int n) {\n"
        " int i = get_global_id(0);\n"
        " y[i] = x[i % n * n + i / n + OFFSET]; }",
    )
    x = np.arange(64, dtype=np.float32)
    case = copy_case(x, x.reshape(8, 8).T.reshape(-1).copy())

    def variant(offset: int) -> Library:
        source = f"#define OFFSET {offset}\n".encode() + library.modules[0].code
        return replace(library, modules=(CodeModule("opencl-c", source),))

    report = check_tests(operator, [case], variant(0), checker)
    assert (report.status, report.findings, report.notes) == ("pass", (), ())
    findings = check_operator(operator, [case], variant(1), checker)
    assert ("out-of-bounds read", 4) in {(each.kind, each.line) for each in findings}


def test_one_test_of_each_shape_is_checked_and_time_bounds_the_rest(
    operator: Operator, checker: Checker
) -> None:
    x = np.arange(64, dtype=np.float32)
    narrow, library = copy_library(
        64,
        "__kernel void copy(__global const float* x, __global float* y, int n) {"
        " y[get_global_id(0)] = x[get_global_id(0)]; }",
    )
    parameters = (structs.replace(narrow.parameters[0], shape=("rows",)), narrow.parameters[1])
    wide = replace(narrow, parameters=parameters)
    program = structs.replace(library.operators["copy"], parameters=parameters)
    library = replace(library, operators={"copy": program})
    sizes = (128, 64, 96, 64, 128)
    cases = [
        replace(copy_case(np.zeros(size, np.float32), 0 * x), id=f"copy@{at}")
        for at, size in enumerate(sizes)
    ]
    report = check_tests(wide, cases, library, checker)
    assert (report.checked, report.same_shape) == (("copy@1", "copy@2", "copy@0"), 2)
    hurried = check_tests(wide, cases, library, checker, seconds=1e-6)
    assert hurried.checked == ("copy@1",)
    assert [each.test for each in hurried.not_run] == ["copy@2", "copy@0"]
    assert "it may take" in hurried.not_run[0].reason


def test_an_operator_without_tests_is_not_checked(operator: Operator, checker: Checker) -> None:
    assert check_tests(operator, [], linear_library(operator), checker).status == "not run"
    with pytest.raises(RemoteError, match="it has no test"):
        check_operator(operator, [], linear_library(operator), checker)
