"""Kernel text in three languages, executed by this processor."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from tapml_targets.driver import BufferUse, ScalarUse
from tapml_targets.errors import (
    CompileError,
    CompilerFailedError,
    InputError,
    LimitExceededError,
    RemoteError,
)
from tapml_targets.library import CodeModule, Kernel
from tapml_targets.simulator import dialects, toolchain
from tapml_targets.threaded_c.language import threaded_c
from tests.targets.simulator.running import DIALECTS, SCHEDULES, SUM, opened, run

A = np.arange(128, dtype=np.float32)
COUNT = [ScalarUse(64, "int32")]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_sum_through_shuffles_and_shared_memory(dialect: str, schedule: str) -> None:
    o, _ = run(SUM[dialect], [np.zeros(2, np.float32), A], COUNT, dialect=dialect, grid=2,
               schedule=schedule)  # fmt: skip
    assert o.tolist() == [A[:64].sum(), A[64:].sum()]


def test_a_sum_on_waves_of_64_keeps_to_its_width() -> None:
    """Written for waves of 32, it is right on 64 only if its shuffles keep to 32."""
    o, _ = run(SUM["hip-c"], [np.zeros(2, np.float32), A], COUNT, dialect="hip-c", grid=2, width=64)
    assert o.tolist() == [A[:64].sum(), A[64:].sum()]
    wrong = SUM["hip-c"].replace("by, 32", "by").replace("by = 16", "by = 32")
    o, _ = run(wrong, [np.zeros(2, np.float32), A], COUNT, dialect="hip-c", grid=2, width=64)
    assert o.tolist() != [A[:64].sum(), A[64:].sum()]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_without_its_barrier_some_schedule_gives_something_else(dialect: str) -> None:
    text = (
        SUM[dialect]
        .replace("__syncthreads();", "")
        .replace("threadgroup_barrier(mem_flags::mem_threadgroup);", "")
    )
    assert text != SUM[dialect]
    right = A[:64].sum()
    found = [
        run(text, [np.zeros(2, np.float32), A], COUNT, dialect=dialect, schedule=each)[0][0]
        for each in SCHEDULES
    ]
    assert any(value != right for value in found)


def test_a_read_behind_a_buffer_names_line_byte_and_thread() -> None:
    with pytest.raises(RemoteError, match=r"thread \(32,0,0\) of block \(1,0,0\) .*at line 3 .*"
                       r"byte 384 of buffer argument 1, which has 384"):  # fmt: skip
        run(SUM["cuda-c"], [np.zeros(2, np.float32), A[:96]], COUNT, grid=2)


def test_a_barrier_that_only_some_reach_names_both_lines() -> None:
    text = """extern "C" __global__ void f(float* o) {
      if (threadIdx.x < 8) {
        __syncthreads();
      }
    }"""
    with pytest.raises(RemoteError, match=r"divergent barrier: .* waits at line 3, and "
                       r"thread \(8,0,0\) has ended"):  # fmt: skip
        run(text, [np.zeros(2, np.float32)])


def test_a_shuffle_that_names_an_absent_lane_is_divergent() -> None:
    text = (
        SUM["cuda-c"]
        .replace("if (threadIdx.x % 32 == 0)", "if (threadIdx.x < 5)\n")
        .replace(
            "parts[threadIdx.x / 32] = value", "parts[0] = __shfl_xor_sync(0xffffffffu, value, 1)"
        )
    )
    with pytest.raises(RemoteError, match=r"divergent shuffle: .* at line 6, and thread \(5,0,0\)"):
        run(text, [np.zeros(2, np.float32), A], COUNT)


def test_shared_memory_is_not_zero_at_first() -> None:
    text = """extern "C" __global__ void f(float* o) {
      __shared__ float s[64]; extern __shared__ float more[];
      o[threadIdx.x] = threadIdx.x < 32 ? s[threadIdx.x] : more[threadIdx.x - 32];
    }"""
    (o,) = run(text, [np.zeros(64, np.float32)], dynamic=128)
    assert np.isnan(o).all()


def test_a_message_of_the_compiler_names_the_kernels_line() -> None:
    with pytest.raises(CompileError, match=r"kernels:7:\d+: error: .*'unknown_name'"):
        run(SUM["cuda-c"].replace("parts[0] + parts[1]", "unknown_name"), [A, A], COUNT)
    with pytest.raises(CompileError, match="the module has no kernel 'f'"):
        run(SUM["metal"].replace("kernel void f", "kernel void g"), [A], dialect="metal")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_brace_that_is_missing_is_told_at_the_end_of_the_text(dialect: str) -> None:
    """Not where the simulator's own lines behind it begin."""
    text = SUM[dialect].rstrip().removesuffix("}")
    with pytest.raises(CompileError) as refused:
        run(text, [A, A], COUNT, dialect=dialect)
    last = text.count("\n") + 1
    assert f"kernels:{last}:" in str(refused.value) or f"kernels:{last + 1}:" in str(refused.value)
    assert "expected '}'" in str(refused.value) and "entries:" not in str(refused.value)


def test_a_compiler_that_is_killed_has_refused_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where memory runs out."""
    killed = tmp_path / "zig"
    killed.write_text("#!/bin/sh\nkill -9 $$\n")
    killed.chmod(0o755)
    monkeypatch.setattr(toolchain, "_compiler", lambda: str(killed))
    text = f"// of {tmp_path}\n{SUM['cuda-c']}"
    with pytest.raises(CompilerFailedError, match="ziglang was killed by signal 9"):
        run(text, [A, A], COUNT)


def test_arguments_that_a_kernel_does_not_take_are_refused() -> None:
    with pytest.raises(InputError, match="takes memory, memory, a number of 4 bytes; got memory, "
                       "memory, a number of 8 bytes"):  # fmt: skip
        run(SUM["cuda-c"], [A, A], [ScalarUse(64, "int64")])
    with pytest.raises(InputError, match="a block of 2048 threads"):
        run(SUM["cuda-c"], [A, A], COUNT, block=2048)
    driver = opened("cuda-c")
    module = CodeModule("cuda-c", SUM["cuda-c"].encode())
    with pytest.raises(LimitExceededError, match="needs waves of 64 threads"):
        driver.load(module, [Kernel("f", "f", 0, subgroup_width=64)])
    kernel = driver.load(module, [Kernel("f", "f", 0)])["f"]
    with pytest.raises(InputError, match="outside a buffer of 4 bytes"):
        driver.launch(
            kernel, [*[BufferUse(driver.allocate(4), 0, 8)] * 2, *COUNT], (1, 1, 1), (64, 1, 1)
        )


def test_numbers_of_a_metal_kernel_are_one_structure_as_c_lays_it_out() -> None:
    text = """struct f_args_t { int a; long b; half c; float d; };
    kernel void f(device float* o [[buffer(0)]], constant f_args_t& arg [[buffer(1)]]) {
      o[0] = arg.a; o[1] = arg.b; o[2] = arg.c; o[3] = arg.d;
    }"""
    numbers = [ScalarUse(-3, "int32"), ScalarUse(2**40, "int64"), ScalarUse(0.5, "float16"),
               ScalarUse(1.25, "float32")]  # fmt: skip
    (o,) = run(text, [np.zeros(4, np.float32)], numbers, dialect="metal", block=1)
    assert o.tolist() == [-3, 2**40, 0.5, 1.25]


def test_ctrl_c_ends_a_launch_between_blocks() -> None:
    text = """extern "C" __global__ void f(volatile float* o) {
      for (int i = 0; i < 300000; ++i) o[0] += 1.0f;
    }"""
    driver = opened("cuda-c")
    kernel = driver.load(CodeModule("cuda-c", text.encode()), [Kernel("f", "f", 0)])["f"]
    buffer = driver.allocate(4)
    threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        driver.launch(kernel, [BufferUse(buffer, 0, 4)], (1 << 30, 1, 1), (1, 1, 1))


def test_a_server_that_takes_no_machine_code_simulates_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TAPML_ALLOW_SHARED_LIBRARIES", "0")
    with pytest.raises(Exception, match="--allow-shared-libraries"):
        run(SUM["cuda-c"], [A, A], COUNT)


def test_a_language_under_another_name_is_executed_as_the_one_that_it_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stated = threaded_c("other-c", "oc", options={}, needs={}, executed_as="hip-c")
    monkeypatch.setattr(dialects, "language_of_dialect", {"other-c": stated}.get)
    assert dialects.dialect_named("other-c") is dialects.dialect_named("hip-c")
    with pytest.raises(CompileError, match="executed_as"):
        dialects.dialect_named("another-c")
