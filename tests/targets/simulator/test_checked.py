"""The checked mode: planted faults are found with their lines, and clean kernels are silent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from tapml_targets.check_messages import Message
from tapml_targets.driver import BufferUse, ScalarUse
from tapml_targets.library import CodeModule, Kernel
from tapml_targets.simulator.checker import (
    LOG_VARIABLE,
    environment,
    find_checker,
    is_silenced,
    read_messages,
)
from tests.targets.simulator.running import DIALECTS, SUM, described, opened, run

A = np.arange(128, dtype=np.float32)
COUNT = [ScalarUse(64, "int32")]
Check: TypeAlias = Callable[..., list[Message]]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Run the kernel `f` of a text as :func:`running.run` does; what was found."""
    log = tmp_path / "log.txt"
    for name, value in environment(Path(), log).items():
        monkeypatch.setenv(name, value)

    def checked(text: str, *given: Any, **options: Any) -> list[Message]:
        log.unlink(missing_ok=True)
        run(text, *given, **options)
        written = log.read_text()
        assert not is_silenced(written)
        return list(read_messages(written))

    return checked


def kinds(messages: list[Message]) -> set[tuple[str, str, tuple[int, ...]]]:
    """What was found, in what memory, at which lines."""
    return {
        (each.kind, each.address_space, tuple(place.line for place in each.places))
        for each in messages
    }


def line(text: str, part: str) -> int:
    return next(number for number, each in enumerate(text.split("\n"), 1) if part in each)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_clean_kernel_is_silent_and_each_planted_fault_is_found(
    dialect: str, check: Check
) -> None:
    def faults(text: str) -> set[tuple[str, str, tuple[int, ...]]]:
        o = np.zeros(2, np.float32)
        return kinds(check(text, [o, A], COUNT, dialect=dialect, grid=2))

    clean = SUM[dialect]
    assert faults(clean) == set()
    read, write, load = (
        line(clean, part) for part in ("parts[0] +", "parts[threadIdx", "? a[blockIdx")
    )
    barrier = "__syncthreads();"
    if dialect == "metal":
        barrier = "threadgroup_barrier(mem_flags::mem_threadgroup);"
    assert ("data race", "local", (write, read)) in faults(clean.replace(barrier, ""))
    shifted = faults(clean.replace("? a[blockIdx", "? a[1 + blockIdx"))
    assert shifted == {("out-of-bounds read", "global", (load,))}
    stray = faults(clean.replace("o[blockIdx", "o[2 * blockIdx"))
    assert stray == {("out-of-bounds write", "global", (read,))}
    unwritten = faults(clean.replace("parts[1]", "parts[2]"))
    assert unwritten == {("uninitialised value", "local", (read,))}
    if dialect != "metal":
        parted = clean.replace(barrier, "if (threadIdx.x < 40) {\n__syncthreads();\n}")
        assert faults(parted) == {("barrier divergence", "", (line(clean, barrier) + 1,))}


def test_a_race_names_both_threads_and_both_lines(check: Check) -> None:
    text = """extern "C" __global__ void f(int* o) {
      if (threadIdx.x == 7)
        o[0] = 3;
      if (threadIdx.x == 9)
        o[threadIdx.x] = o[0];
    }"""
    (found,) = check(text, [np.zeros(16, np.int32)])
    assert (found.kind, found.address_space) == ("data race", "global")
    assert {(p.line, p.access, p.work_item) for p in found.places} == {
        (3, "write", "(7,0,0)"),
        (5, "read", "(9,0,0)"),
    }
    assert found.address == 1 << 48


def test_writes_of_one_value_are_no_race_and_of_two_are(check: Check) -> None:
    text = """extern "C" __global__ void f(int* o) {
      o[blockIdx.x] = VALUE;
    }"""
    assert check(text.replace("VALUE", "5"), [np.zeros(2, np.int32)], grid=2) == []
    (found,) = check(text.replace("VALUE", "threadIdx.x / 63"), [np.zeros(1, np.int32)])
    assert found.headline.startswith("Write-write data race at global memory address")


def test_atomics_do_not_race_with_each_other(check: Check) -> None:
    text = """extern "C" __global__ void f(int* o, float* p) {
      atomicAdd(o, 1); atomicMax(&o[1], (int)threadIdx.x); atomicAdd(p, 0.5f);
    }"""
    arrays = [np.zeros(2, np.int32), np.zeros(1, np.float32)]
    assert check(text, arrays, grid=3) == []
    assert [o.tolist() for o in run(text, arrays, grid=3)] == [[192, 63], [96.0]]
    mixed = text.replace("atomicAdd(o, 1);", "if (threadIdx.x) atomicAdd(o, 1); else o[0] = 7;")
    assert [each.kind for each in check(mixed, arrays)] == ["data race"]


def test_lanes_in_step_are_not_assumed_but_their_barrier_is_known(check: Check) -> None:
    """The tail of a reduction of old: right only while 32 lanes run in lockstep."""
    text = """extern "C" __global__ void f(float* o, const float* a) {
      __shared__ float s[64];
      s[threadIdx.x] = a[threadIdx.x];
      __syncthreads();
      if (threadIdx.x < 32) {
        s[threadIdx.x] += s[threadIdx.x + 32];
        BETWEEN
        if (threadIdx.x < 16) s[threadIdx.x] += s[threadIdx.x + 16];
        BETWEEN
        if (threadIdx.x == 0) o[0] = s[0] + s[15];
      }
    }"""
    arrays = [np.zeros(1, np.float32), A[:64]]
    found = check(text.replace("BETWEEN", ""), arrays)
    assert {each.kind for each in found} == {"data race"}
    assert check(text.replace("BETWEEN", "__syncwarp();"), arrays) == []


def test_memory_that_nobody_wrote_is_told_of(check: Check, tmp_path: Path) -> None:
    del check
    text = (
        """extern "C" __global__ void f(float* o, float* a) { o[threadIdx.x] = a[threadIdx.x]; }"""
    )
    driver = opened("cuda-c")
    kernel = driver.load(CodeModule("cuda-c", text.encode()), [Kernel("f", "f", 0)])["f"]
    target, source, copied = (driver.allocate(16) for _ in range(3))
    driver.fill(source, 0, 12, b"\0")
    driver.copy(source, 0, copied, 0, 16)
    uses = [BufferUse(target, 0, 16), BufferUse(copied, 0, 16)]
    driver.launch(kernel, uses, (1, 1, 1), (4, 1, 1))
    (found,) = read_messages((tmp_path / "log.txt").read_text())
    assert (found.kind, found.address) == ("uninitialised value", (3 << 48) + 12)
    assert found.places[0].work_item == "(3,0,0)"


def test_a_window_is_exact_where_the_buffer_goes_on(check: Check, tmp_path: Path) -> None:
    del check
    text = """extern "C" __global__ void f(char* o) { o[threadIdx.x] = 1; }"""
    driver = opened("cuda-c")
    kernel = driver.load(CodeModule("cuda-c", text.encode()), [Kernel("f", "f", 0)])["f"]
    buffer = driver.allocate(64)
    driver.launch(kernel, [BufferUse(buffer, 3, 5, behind=8)], (1, 1, 1), (6, 1, 1))
    (found,) = read_messages((tmp_path / "log.txt").read_text())
    assert (found.kind, found.address) == ("out-of-bounds write", (1 << 48) + 8)


def test_the_device_of_a_process_that_checks_is_a_checker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(LOG_VARIABLE, raising=False)
    opened("metal")
    assert find_checker().is_file()
    assert (described().device_type, described().name) == ("simulated", "a test, source-simulated")
    monkeypatch.setenv(LOG_VARIABLE, str(tmp_path / "log.txt"))
    assert described().device_type == "checker"


def test_a_log_that_was_cut_is_read_as_far_as_it_goes() -> None:
    whole = '{"kind":"data race","headline":"x"}\n'
    assert [each.kind for each in read_messages(whole + whole[:20])] == ["data race"]
    assert is_silenced('{"silenced": true}\n')
    assert not is_silenced(whole)
